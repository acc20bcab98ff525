"""Runs unmodified deepagents and LangChain agents with TurnlogSaver and langchain-openai's model (`make clients`)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.api import Api, Serve
from helpers.langgraph_graphs import config
from helpers.openai_bodies import Step
from helpers.openai_server import Kind
from helpers.stage import MemoryServer, wait_until_idle
from installed import AGENTS
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from pydantic import BaseModel

from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.workers.reactors.extraction import NAME as EXTRACTION

pytestmark = pytest.mark.filterwarnings("ignore")
SUMMARY = "The person wishes to be called Captain and lives in Genoa."


class Plan(BaseModel):
    """The form of the agent's answer. LangChain sends this docstring to the model."""

    city: str
    days: int


class AgentServer(MemoryServer):
    """Calls the tool `Plan` if the agent has it, returns SUMMARY if asked for a summary, and otherwise echoes."""

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        tools = {tool["function"]["name"] for tool in body.get("tools") or ()}
        last = json.dumps(body["messages"][-1]["content"]) if kind == "chat" else ""
        if "Plan" in tools:
            return Step(tool_calls=[("Plan", {"city": "Ulm", "days": 3})])
        if "summar" in last.lower() or "extract" in last.lower():
            return Step(text=SUMMARY)
        return super().next_step(kind, body)


@pytest.fixture
def model() -> Iterator[AgentServer]:
    with AgentServer() as server:
        yield server


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(AGENTS))


def chat_model(server: AgentServer) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="m", base_url=server.url, api_key="none")


async def transcript(api: Api, thread: str = "t") -> list[tuple[str, str, str]]:
    """Returns (role, text, origin) of each turn of the thread."""
    await api.runtime.wait_until_projected()
    async with api.client("ann") as ann:
        items = (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]
    return [(turn["role"], turn["content"], turn["origin"]) for turn in items]


FORMS = [("user", "I live in Turin"), {"role": "user", "content": "I live in Turin"}, "I live in Turin"]


@pytest.mark.parametrize("at", range(len(FORMS)))
async def test_messages_to_a_deep_agent_are_turns(serve: Serve, model: AgentServer, at: int) -> None:
    from deepagents import create_deep_agent

    async with serve() as api:
        for _ in range(3):
            agent = create_deep_agent(
                model=chat_model(model), checkpointer=TurnlogSaver(api.runtime.log, api.runtime.pool)
            )
            state = await agent.ainvoke({"messages": [FORMS[at]]}, config(user_id="ann"))
        said = [("user", "I live in Turin", "person"), ("assistant", "echo: I live in Turin", "model")]
        assert [(role, text) for role, text, _ in await transcript(api)] == [turn[:2] for turn in said] * 3
        assert len(state["messages"]) == 6


async def test_an_answer_in_an_applications_form_is_read_back(serve: Serve, model: AgentServer) -> None:
    async with serve() as api:
        for _ in range(2):
            saver = TurnlogSaver(api.runtime.log, api.runtime.pool)
            agent = create_agent(chat_model(model), response_format=Plan, checkpointer=saver)
            state = await agent.ainvoke({"messages": [("user", "Plan my trip")]}, config(user_id="ann"))
            assert state["structured_response"] == Plan(city="Ulm", days=3)
        saver = TurnlogSaver(api.runtime.log, api.runtime.pool)
        kept = await create_agent(chat_model(model), response_format=Plan, checkpointer=saver).aget_state(config())
        assert kept.values["structured_response"] == Plan(city="Ulm", days=3)
        assert [role for role, *_ in await transcript(api)] == ["user", "assistant", "tool"] * 2


@pytest.mark.parametrize("is_deep", [False, True])
async def test_summaries_of_agents_are_not_the_persons_words(serve: Serve, model: AgentServer, is_deep: bool) -> None:
    async with serve("reactors") as api:
        saver = TurnlogSaver(api.runtime.log, api.runtime.pool)
        options: dict[str, Any] = {"model": chat_model(model), "checkpointer": saver}
        if is_deep:
            from deepagents import create_deep_agent
            from deepagents.backends import StateBackend
            from deepagents.middleware.summarization import SummarizationMiddleware as DeepSummaries

            backend = StateBackend()
            deep = DeepSummaries(
                model=chat_model(model), backend=backend, trigger=("messages", 5), keep=("messages", 2)
            )
            agent = create_deep_agent(**options, backend=backend, middleware=[deep])
        else:
            langchain = SummarizationMiddleware(model=chat_model(model), trigger=("messages", 5), keep=("messages", 2))
            agent = create_agent(**options, middleware=[langchain])
        for at in range(4):
            await agent.ainvoke({"messages": [("user", f"Number {at} of my list")]}, config(user_id="ann"))
        asked = [
            message
            for body in model.bodies("chat")
            for message in body["messages"]
            if SUMMARY in str(message["content"])
        ]
        assert asked, "the agent's model is given the summary"
        turns = await transcript(api)
        assert [text for role, text, origin in turns if origin == "person"] == [
            f"Number {at} of my list" for at in range(4)
        ]
        assert {origin for _, text, origin in turns if SUMMARY in text} <= {"program", "model"}
        await wait_until_idle(api.runtime.log, EXTRACTION)
        await api.runtime.wait_until_projected()
        async with api.client("ann") as ann:
            assert "Captain" not in (await ann.get("/api/memories")).text
