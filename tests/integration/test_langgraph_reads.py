"""Each read returns separate objects, so that changes to them affect neither the thread nor other readers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from helpers.langgraph_graphs import chat, config, one_node, turns
from helpers.mirrored_saver import MirroredSaver, exact
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import MessagesState

from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.langgraph.checkpoint.checkpoints import ROOT, config_of
from turnlog.consumers.langgraph.checkpoint.queries import NEWEST
from turnlog.consumers.langgraph.checkpoint.reading import first_look
from turnlog.consumers.langgraph.checkpoint.sending import NotWritten
from turnlog.consumers.runtime import connection_pool
from turnlog.events.log import Log
from turnlog.events.personal_data_caches import forget_all
from turnlog.events.stream import StreamOptions
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection


@pytest.fixture
async def pool(database_url: str, running_projectors: Runner) -> AsyncIterator[Pool]:
    async with connection_pool(database_url) as opened:
        yield opened


@pytest.fixture
async def mirror(log: Log, pool: Pool) -> MirroredSaver:
    return MirroredSaver(TurnlogSaver(log, pool))


async def said(graph: Any) -> list[BaseMessage]:
    messages: list[BaseMessage] = (await graph.aget_state(config())).values["messages"]
    return messages


def spoil(messages: list[BaseMessage]) -> None:
    for message in messages:
        message.content = "spoilt"
        message.additional_kwargs["spoilt"] = {"deep": []}
        message.response_metadata.setdefault("told", []).append("spoilt")
        message.__pydantic_fields_set__.clear()
    messages.clear()


async def test_a_changed_state_damages_neither_the_thread_nor_other_readers(
    log: Log, pool: Pool, mirror: MirroredSaver, db: Connection
) -> None:
    reply = AIMessage("kept", id="a1", response_metadata={"told": ["one"]}, additional_kwargs={"a": {"b": [1]}})
    graph = chat(mirror, reply)
    result = await graph.ainvoke({"messages": [HumanMessage("one", id="h1")]}, config())
    cold = chat(MirroredSaver(TurnlogSaver(log, pool), mirror.reference))
    other, whole = await said(graph), exact(await said(graph))
    for spoilt in (result["messages"], await said(graph), await said(cold), await said(cold)):
        spoil(spoilt)
        assert exact(await said(graph)) == whole
        assert exact(await said(cold)) == whole
        assert exact(other) == whole
    await graph.ainvoke({"messages": [HumanMessage("two", id="h2")]}, config())
    assert [message.content for message in await said(cold)] == ["one", "kept", "two", "I saw 3"]
    assert exact(other) == whole
    assert [content for _, content in await turns(db)] == ["one", "kept", "two", "I saw 3"]


async def test_a_thread_whose_words_were_forgotten_is_read_again(log: Log, pool: Pool) -> None:
    graph = chat(TurnlogSaver(log, pool))
    await graph.ainvoke({"messages": [HumanMessage("one", id="h1")]}, config())
    whole = exact(await said(graph))
    before = pool.get_stats().get("requests_num", 0)
    forget_all()
    assert exact(await said(graph)) == whole
    assert pool.get_stats()["requests_num"] > before


async def test_a_node_that_changes_messages_in_place_is_recorded_as_it_left_them(
    log: Log, pool: Pool, mirror: MirroredSaver, db: Connection
) -> None:
    async def node(state: MessagesState) -> Any:
        state["messages"][0].additional_kwargs.setdefault("seen", []).append(len(state["messages"]))
        state["messages"][0].content = f"{state['messages'][0].content}!"
        return {"messages": [AIMessage(f"I saw {len(state['messages'])}")]}

    graph = one_node(MessagesState, node, mirror)
    for text in ("one", "two"):
        await graph.ainvoke({"messages": [HumanMessage(text, id=text)]}, config())
    cold = one_node(MessagesState, node, MirroredSaver(TurnlogSaver(log, pool), mirror.reference))
    first = (await said(cold))[0]
    assert (first.content, first.additional_kwargs) == ("one!!", {"seen": [1, 3]})
    assert exact(await said(graph)) == exact(await said(cold))


async def test_a_fresh_saver_asks_postgres_once(log: Log, pool: Pool, mirror: MirroredSaver) -> None:
    graph = chat(mirror)
    for text in ("one", "two", "three"):
        await graph.ainvoke({"messages": [HumanMessage(text)]}, config())
    await said(chat(TurnlogSaver(log, pool)))  # the tables contain everything
    fresh = chat(TurnlogSaver(log, pool))
    before = pool.get_stats()["requests_num"]
    assert len(await said(fresh)) == 6
    assert pool.get_stats()["requests_num"] == before + 1
    assert len(await said(fresh)) == 6
    assert pool.get_stats()["requests_num"] == before + 1


async def test_a_turn_sends_the_log_its_events_and_two_requests(log: Log, nats_url: str, pool: Pool) -> None:
    own = await Log.connect(nats_url, StreamOptions())  # by the fixture's log the projectors send requests too
    try:
        graph = chat(TurnlogSaver(own, pool))
        await graph.ainvoke({"messages": [HumanMessage("one")]}, config())
        head, sent = await log.head(), own.nc.stats["out_msgs"]
        await graph.ainvoke({"messages": [HumanMessage("two")]}, config())
        messages = own.nc.stats["out_msgs"] - sent
        assert messages == await log.head() - head + 2  # the thread's counts of events, and its last deletion
    finally:
        await own.close()


@pytest.mark.nightly
async def test_the_first_read_always_uses_generic_query_plans(log: Log, pool: Pool, database_url: str) -> None:
    parameters = {"tenant": "default", "thread": "short", "ns": ""}
    async with await connect(database_url) as conn:
        for thread, count in (("short", 1), ("long", 100)):
            graph = chat(TurnlogSaver(log, pool))
            for number in range(count):
                await graph.ainvoke({"messages": [HumanMessage(f"{number}")]}, config(thread))
            await chat(TurnlogSaver(log, pool)).aget_state(config(thread))  # the tables contain everything
            await conn.execute("ANALYZE")
            for _ in range(6):
                assert (await first_look(conn, NEWEST, True, parameters)).saved is not None
        plans = await conn.execute(
            "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE '%checkpoints c%'"
        )
        assert await plans.fetchall() == [(0, 12)] * 3
        mode = await conn.execute("SHOW plan_cache_mode")
        assert await mode.fetchone() == ("auto",), "the session's other statements are planned as ever"


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_a_thread_deleted_while_a_run_goes_on_stays_deleted(
    log: Log, pool: Pool, db: Connection, is_elsewhere: bool
) -> None:
    saver = TurnlogSaver(log, pool)
    deleting = TurnlogSaver(log, pool) if is_elsewhere else saver
    await chat(saver).ainvoke({"messages": [HumanMessage("one", id="1")]}, config())

    async def forgetful(state: MessagesState) -> Any:
        await deleting.adelete_thread("t")
        return {"messages": [AIMessage("gone?", id="3")]}

    with pytest.raises(NotWritten, match="was deleted after this run began"):
        await one_node(MessagesState, forgetful, saver).ainvoke({"messages": [HumanMessage("two", id="2")]}, config())
    for reader in (saver, deleting, TurnlogSaver(log, pool)):
        assert (await chat(reader).aget_state(config())).values == {}
    assert await turns(db) == []

    for run, reader in enumerate((deleting, saver)):  # the name can be used for new runs of every process
        result = await chat(reader).ainvoke({"messages": [HumanMessage("three")]}, config())
        assert [message.content for message in result["messages"]][::2] == ["three"] * (run + 1)


async def test_writes_overtaken_by_a_deletion_elsewhere_are_not_stored(log: Log, pool: Pool, db: Connection) -> None:
    saver = TurnlogSaver(log, pool)
    await chat(saver).ainvoke({"messages": [HumanMessage("one")]}, config())
    old = await saver.aget_tuple(config())
    assert old is not None
    later = cast(Checkpoint, {**old.checkpoint, "id": str(uuid6())})
    held = saver._threads.get("t")
    async with held.lock:  # both are checked and wait for sending
        writing = asyncio.create_task(saver.aput_writes(old.config, [("messages", AIMessage("late"))], "task"))
        putting = asyncio.create_task(saver.aput(old.config, later, {"source": "loop", "step": 9, "parents": {}}, {}))
        while len(held.queue) < 2:
            await asyncio.sleep(0)
        await TurnlogSaver(log, pool).adelete_thread("t")
    for late in (writing, putting):
        with pytest.raises(NotWritten, match="was deleted after this run began"):
            await late
    assert (await chat(saver).aget_state(config())).values == {}
    assert await turns(db) == []
    result = await chat(saver).ainvoke({"messages": [HumanMessage("two")]}, config())
    assert [message.content for message in result["messages"]] == ["two", "I saw 1"]


async def test_late_writes_of_a_run_before_a_deletion_stay_out_of_the_run_after_it(log: Log, pool: Pool) -> None:
    saver = TurnlogSaver(log, pool)
    await chat(saver).ainvoke({"messages": [HumanMessage("one")]}, config())
    old = await saver.aget_tuple(config())
    assert old is not None
    await saver.adelete_thread("t")
    await chat(saver).ainvoke({"messages": [HumanMessage("two")]}, config())
    with pytest.raises(NotWritten):
        await saver.aput_writes(old.config, [("messages", AIMessage("late"))], "task")
    parent = old.config
    for _ in range(2):  # the second builds on the first, which was refused
        late = cast(Checkpoint, {**old.checkpoint, "id": str(uuid6())})
        with pytest.raises(NotWritten):
            await saver.aput(parent, late, {"source": "loop", "step": 9, "parents": {}}, {})
        parent = config_of("t", ROOT, late["id"])
    state = await chat(TurnlogSaver(log, pool)).aget_state(config())
    assert [message.content for message in state.values["messages"]] == ["two", "I saw 1"]
