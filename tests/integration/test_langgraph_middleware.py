"""TurnlogMiddleware gives a LangChain agent's model a tiered context and leaves the agent's state unchanged."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from helpers.langgraph_graphs import config
from helpers.sample_events import derivation, event
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from turnlog.agent.context import WindowTooSmall, counter_for
from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph import TurnlogMiddleware, TurnlogSaver
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import HistoryPruned, SummaryWritten
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import wait_for

WINDOW = 2_000


@pytest.fixture
async def pool(database_url: str, running_projectors: Runner) -> AsyncIterator[Pool]:
    async with connection_pool(database_url) as opened:
        yield opened


class Listener(BaseChatModel):
    """A chat model that records its input; its first answer may be a tool call."""

    sent: list[list[BaseMessage]] = []  # noqa: RUF012
    calls: list[dict[str, Any]] = []  # noqa: RUF012
    model_name: str = "gpt-4o-mini"

    @property
    def _llm_type(self) -> str:
        return "listener"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.sent.append(messages)
        made = AIMessage("", tool_calls=[self.calls.pop(0)]) if self.calls else AIMessage("noted")
        return ChatResult(generations=[ChatGeneration(message=made)])


@tool
def look(where: str) -> str:
    """Looks somewhere."""
    return f"seen in {where} " * 200


def agent(saver: TurnlogSaver, model: Listener, window: int = WINDOW) -> Any:
    settings = Settings(context_window=window, model="gpt-4o-mini")
    middleware = [TurnlogMiddleware(saver, settings)]
    return create_agent(model, [look], system_prompt="Be brief.", middleware=middleware, checkpointer=saver)


def long_talk() -> list[BaseMessage]:
    """Returns messages of about 8,000 tokens."""
    messages: list[BaseMessage] = []
    for number in range(40):
        call = {"name": "look", "args": {"where": f"box {number}"}, "id": f"call {number}", "type": "tool_call"}
        messages += [HumanMessage(f"question {number} " * 10), AIMessage("", tool_calls=[call])]
        messages += [ToolMessage("seen " * 100, tool_call_id=f"call {number}"), AIMessage(f"answer {number} " * 10)]
    return messages


async def test_a_conversation_that_fits_is_sent_unchanged(log: Log, pool: Pool) -> None:
    saver, model = TurnlogSaver(log, pool), Listener()
    said = [HumanMessage("one", additional_kwargs={"mine": 1}), AIMessage("two"), HumanMessage("three")]
    done = await agent(saver, model).ainvoke({"messages": said}, config())
    assert model.sent[0][0].content == "Be brief."
    assert model.sent[0][1:] == done["messages"][:-1]


async def test_a_long_conversation_is_trimmed_for_the_model_and_whole_in_the_state(log: Log, pool: Pool) -> None:
    saver, model = TurnlogSaver(log, pool), Listener()
    said = [*long_talk(), HumanMessage("and now?", additional_kwargs={"mine": 1})]
    done = await agent(saver, model).ainvoke({"messages": said}, config())
    system, *sent = model.sent[0]
    assert system.content == "Be brief."
    assert sent[-4:] == done["messages"][-5:-1]  # the same message objects, with fields that no wire format contains
    assert sent[-1].additional_kwargs == {"mine": 1}
    counter = counter_for("gpt-4o-mini")
    assert 200 < sum(counter.text(str(message.content)) for message in sent) < WINDOW
    condensed = next(message for message in sent if message.type == "tool")
    assert len(str(condensed.content)) < len("seen " * 100)
    assert_pairs_are_whole(sent)
    state = (await agent(saver, model).aget_state(config())).values["messages"]
    assert [message.content for message in state] == [message.content for message in said] + ["noted"]


async def test_tool_rounds_of_the_agent_are_kept_together(log: Log, pool: Pool) -> None:
    saver = TurnlogSaver(log, pool)
    calls = [{"name": "look", "args": {"where": "box"}, "id": f"new {n}", "type": "tool_call"} for n in range(3)]
    model = Listener(calls=calls)
    await agent(saver, model).ainvoke({"messages": [*long_talk(), HumanMessage("look!")]}, config())
    assert len(model.sent) == 4
    for sent in model.sent:
        assert_pairs_are_whole(sent[1:])
        assert any(message.content == "look!" for message in sent)


async def test_the_summary_replaces_the_turns_that_were_left_out(log: Log, pool: Pool) -> None:
    saver, model = TurnlogSaver(log, pool), Listener()
    graph = agent(saver, model)
    await graph.ainvoke({"messages": [*long_talk(), HumanMessage("and now?")]}, config())
    await summarise(log, pool, 20)
    await graph.ainvoke({"messages": [HumanMessage("and then?")]}, config())
    assert "They looked into boxes." in str(model.sent[-1][1].content)
    assert "They looked into boxes." not in str(model.sent[0][1].content)


async def test_a_pruned_state_has_the_summary_though_the_rest_fits(log: Log, pool: Pool) -> None:
    saver, model = TurnlogSaver(log, pool, prune=True), Listener()
    graph = agent(saver, model)
    for text in ("one", "two"):
        await graph.ainvoke({"messages": [HumanMessage(text)]}, config())
    turns = [recorded.seq async for recorded in log.read_thread("default", "t", types=("turn_recorded",))]
    await summarise(log, pool, turns[1])
    await log.append(event(HistoryPruned(through_seq=turns[1], removed=2, remaining=2)))
    await graph.ainvoke({"messages": [HumanMessage("three")]}, config())
    _, summary, *rest = model.sent[-1]
    assert "They looked into boxes." in str(summary.content)
    assert [message.content for message in rest] == ["two", "noted", "three"]


async def test_without_an_event_loop(log: Log, pool: Pool) -> None:
    saver, model = TurnlogSaver(log, pool), Listener()
    said = [*long_talk(), HumanMessage("and now?")]
    await asyncio.to_thread(agent(saver, model).invoke, {"messages": said}, config())
    assert len(model.sent[0]) < len(said)
    assert model.sent[0][-1].content == "and now?"


async def test_a_window_without_room_is_a_clear_error(log: Log, pool: Pool) -> None:
    with pytest.raises(WindowTooSmall):
        await agent(TurnlogSaver(log, pool), Listener(), 50).ainvoke({"messages": [HumanMessage("one")]}, config())


async def summarise(log: Log, pool: Pool, through: int) -> None:
    made = SummaryWritten(
        summary="They looked into boxes.", covered_seq=through, message_count=2, derivation=derivation(1, through)
    )
    done = await log.append(event(made))
    async with pool.connection() as conn:
        await wait_for(conn, ("summaries",), 0, done.seq, timeout_s=180.0)


def assert_pairs_are_whole(sent: list[BaseMessage]) -> None:
    calls = [call["id"] for message in sent if isinstance(message, AIMessage) for call in message.tool_calls]
    assert calls == [message.tool_call_id for message in sent if isinstance(message, ToolMessage)]
    assert calls


async def test_two_runs_at_once_in_one_thread_each_answer_their_own_question(log: Log, pool: Pool) -> None:
    """LangGraph does not order runs of one thread; each run has the messages of the checkpoint that it began with."""
    saver, model = TurnlogSaver(log, pool), Listener()
    await agent(saver, model).ainvoke({"messages": [HumanMessage("first")]}, config())
    model.sent.clear()
    questions = ["Two?", "Three?"]
    runs = [agent(saver, model).ainvoke({"messages": [HumanMessage(text)]}, config()) for text in questions]
    done = await asyncio.gather(*runs)
    assert sorted(messages[-1].text for messages in model.sent) == sorted(questions)
    assert [[message.text for message in state["messages"][-2:]] for state in done] == [
        [text, "noted"] for text in questions
    ]
    said = [recorded.event.data.content async for recorded in log.read_thread("default", "t", types=("turn_recorded",))]
    assert sorted(said) == sorted(["first", *questions, *["noted"] * 3])
