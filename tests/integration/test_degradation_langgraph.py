"""LangGraph on turnlog works while a server or a model is stopped, and after it is back."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.openai_server import OpenAIServer
from helpers.own_servers import OwnServers, own_servers
from helpers.stage import Play, Stage, on_stage, player
from langgraph.graph import END, START, MessagesState, StateGraph

from turnlog.agent.models.errors import ModelUnavailable
from turnlog.consumers.langgraph.chat import converse, thread_config
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.langgraph.conversation import Graph, conversation_graph
from turnlog.consumers.langgraph.store.store import TurnlogStore
from turnlog.events.errors import DatabaseUnavailable

# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
async def own(home: Path) -> AsyncIterator[OwnServers]:
    async with own_servers(home) as servers:
        yield servers


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "gpt-4o", "model_timeout_s": 20.0}
    return player(nats_url, database_url, ["projectors"], **settings)


def saver_of(stage: Stage) -> TurnlogSaver:
    """Returns a saver without cached data."""
    return TurnlogSaver(stage.runtime.log, stage.runtime.pool)


def echo(saver: TurnlogSaver) -> Any:
    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("assistant", f"echo: {state['messages'][-1].text}")]}

    graph = StateGraph(MessagesState).add_node("answer", answer)
    return graph.add_edge(START, "answer").add_edge("answer", END).compile(checkpointer=saver)


async def say(graph: Any, text: str) -> None:
    await graph.ainvoke({"messages": [("user", text)]}, thread_config("t"))


async def said(graph: Any) -> list[str]:
    return [message.text for message in (await graph.aget_state(thread_config("t"))).values["messages"]]


async def test_without_postgres_a_known_thread_goes_on_and_an_unknown_one_is_refused(own: OwnServers) -> None:
    whole = ["one", "echo: one", "two", "echo: two"]
    async with on_stage(own.settings(), ["projectors"]) as stage:
        known = echo(saver_of(stage))
        await say(known, "one")
        await stage.runtime.wait_until_projected()
        await own.kill("postgres")
        await say(known, "two")
        assert await said(known) == whole
        with pytest.raises(DatabaseUnavailable, match="DATABASE_URL"):
            await said(echo(saver_of(stage)))
        await own.back()
        await stage.runtime.wait_until_projected()
        assert await said(echo(saver_of(stage))) == whole
        assert await said(known) == whole


async def test_a_new_thread_can_begin_without_postgres(own: OwnServers) -> None:
    async with on_stage(own.settings(), ["projectors"]) as stage:
        await own.kill("postgres")
        graph = echo(saver_of(stage))
        await say(graph, "one")
        await say(graph, "two")
        assert await said(graph) == ["one", "echo: one", "two", "echo: two"]
        await own.back()
        await stage.runtime.wait_until_projected()
        assert await said(echo(saver_of(stage))) == ["one", "echo: one", "two", "echo: two"]


async def ask(graph: Graph, text: str | None) -> str:
    return "".join([piece async for piece in converse(graph, "t", "ann", text)])


async def test_a_graph_whose_model_is_away_keeps_the_question_and_answers_it_later(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        graph = conversation_graph(stage.runtime, checkpointer=saver_of(stage))
        model.stop()
        with pytest.raises(ModelUnavailable, match="API_BASE_URL"):
            await ask(graph, "Are you there?")
        assert await said(graph) == ["Are you there?"]
        model.start()
        assert await ask(graph, None) == "echo: Are you there?"
        assert await said(graph) == ["Are you there?", "echo: Are you there?"]


async def test_without_the_embedding_model_the_store_keeps_and_finds_items(play: Play, model: OpenAIServer) -> None:
    namespace = ("memories", "ann")
    async with play(embedding_base_url=model.url, embedding_model="words") as stage:
        store = TurnlogStore(stage.runtime.log, stage.runtime.pool, settings=stage.runtime.settings)
        await store.aput(namespace, "first", {"text": "I ran a marathon in Lisbon."})
        model.stop()
        await store.aput(namespace, "second", {"text": "My sister paints boats."})
        assert "vectors" in (store.degraded or "")
        assert [item.key for item in await store.asearch(namespace)] == ["second", "first"]
        items = await store.asearch(namespace, query="Where was the marathon?")
        assert [(item.key, item.score) for item in items] == [("second", None), ("first", None)]
        got = await store.aget(namespace, "second")
        assert got is not None
        assert got.value == {"text": "My sister paints boats."}
        await store.aclose()
        model.start()
        store = TurnlogStore(stage.runtime.log, stage.runtime.pool, settings=stage.runtime.settings)
        assert await store.areindex(namespace) == 1
        items = await store.asearch(namespace, query="Who paints boats?")
        assert [item.key for item in items] == ["second", "first"]
        assert all(item.score is not None for item in items)
        await store.aclose()
