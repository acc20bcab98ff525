"""Tests TurnlogSaver's interface: synchronous calls, errors, metadata, encryption and refusals."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

import pytest
from helpers.langgraph_graphs import chat, config, history, one_node, turns
from helpers.mirrored_saver import MirroredSaver
from helpers.servers import rows
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot
from langgraph.graph import START, MessagesState, StateGraph

from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.langgraph.checkpoint.sending import NotWritten
from turnlog.consumers.runtime import connection_pool
from turnlog.consumers.sync_bridge import WrongThread
from turnlog.events.errors import EventTooLarge, InvalidToken
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection

pytestmark = pytest.mark.slow


@pytest.fixture
async def pool(database_url: str, running_projectors: Runner) -> AsyncIterator[Pool]:
    async with connection_pool(database_url) as opened:
        yield opened


@pytest.fixture
async def saver(log: Log, pool: Pool) -> TurnlogSaver:
    return TurnlogSaver(log, pool)


SCRIPT = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from turnlog.consumers.langgraph import TurnlogSaver

graph = StateGraph(MessagesState)
graph.add_node("agent", lambda state: {"messages": [AIMessage(f"I saw {len(state['messages'])}")]})
graph.add_edge(START, "agent")
config = {"configurable": {"thread_id": "script", "user_id": "ann"}}
with TurnlogSaver.open_sync() as saver:
    app = graph.compile(checkpointer=saver)
    for text in ("one", "two"):
        app.invoke({"messages": [{"role": "user", "content": text}]}, config)
    print([m.content for m in app.get_state(config).values["messages"]], len(list(app.get_state_history(config))))
    saver.prune(["script"])
    print(len(list(saver.list(config))))
    saver.delete_thread("script")
    print(saver.get_tuple(config))
"""


@pytest.mark.nightly
async def test_a_script_without_an_event_loop_uses_the_saver(nats_url: str, database_url: str, tmp_path: Path) -> None:
    environment = {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(tmp_path)}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env={**__import__("os").environ, **environment},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["['one', 'I saw 1', 'two', 'I saw 3'] 6", "1", "None"]


async def test_a_saver_can_be_opened_from_settings_for_a_tenant(nats_url: str, database_url: str) -> None:
    settings = Settings(nats_url=nats_url, database_url=database_url)
    async with TurnlogSaver.open(settings, tenant="acme") as saver:
        await chat(saver).ainvoke({"messages": [HumanMessage("hi")]}, config())
        state = await chat(saver).aget_state(config())
        assert len(state.values["messages"]) == 2
        assert len([saved async for saved in saver.alist(None)]) == 3
    async with TurnlogSaver.open(settings) as other:
        assert await other.aget_tuple(config()) is None


async def test_synchronous_methods_work_only_from_other_threads(saver: TurnlogSaver) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("hi")]}, config())
    for refused in (
        lambda: saver.get_tuple(config()),
        lambda: list(saver.list(config())),
        lambda: saver.delete_thread("t"),
        lambda: saver.prune(["t"]),
        lambda: saver.put_writes(config(), [], "task"),
    ):
        with pytest.raises(WrongThread, match=r"await (saver\.a|graph\.a)"):
            refused()
    loaded = await asyncio.to_thread(saver.get_tuple, config())
    assert loaded == await saver.aget_tuple(config())
    listed = await asyncio.to_thread(lambda: list(saver.list(config(), limit=2)))
    assert [saved.checkpoint["id"] for saved in listed] == [
        saved.checkpoint["id"] async for saved in saver.alist(config(), limit=2)
    ]
    await asyncio.to_thread(saver.copy_thread, "t", "copy")
    await asyncio.to_thread(saver.delete_for_runs, ["no such run"])
    await asyncio.to_thread(saver.delete_thread, "t")
    assert await asyncio.to_thread(saver.get_tuple, config()) is None
    assert await saver.aget_tuple(config("copy")) is not None


async def test_metadata_is_collected_and_cleaned(saver: TurnlogSaver) -> None:
    asked: Any = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "__secret": "x", "assistant": "a\x00b"},
        "metadata": {"run_id": "my run"},
    }
    raw_metadata: Any = {
        "source": "loop",
        "step": 1,
        "score": None,
        "nul": "\x00abc",
        "deep": {"nul": ["\x00", {"k\x00": (1, {2})}]},
        "message": HumanMessage("hi", id="h"),
        "error": ValueError("no"),
        "nan": float("nan"),
    }
    stored = await saver.aput(asked, create_checkpoint(empty_checkpoint(), {}, 1), raw_metadata, {})
    expected = {"source": "loop", "step": 1, "score": None, "nul": "abc", "run_id": "my run", "assistant": "ab"}
    for loaded in (
        await saver.aget_tuple(stored),
        *[saved async for saved in saver.alist(None, filter={"nul": "abc"})],
    ):
        assert loaded is not None
        metadata: dict[str, Any] = dict(loaded.metadata)
        assert {key: metadata[key] for key in expected} == expected
        assert metadata["deep"] == {"nul": ["", {"k": [1, [2]]}]}
        assert metadata["message"]["content"] == "hi"
        assert metadata["error"] == "no"
        assert metadata["nan"] == "NaN"
    await saver.adelete_for_runs(["my run"])
    assert await saver.aget_tuple(stored) is None


async def test_filters_and_bounds_over_all_threads(saver: TurnlogSaver) -> None:
    stored = []
    for thread, ns, step in (("a", "", 1), ("a", "inner", 2), ("b", "", 1)):
        metadata: Any = {"source": "loop", "step": step}
        stored.append(
            await saver.aput(
                config(thread, checkpoint_ns=ns), create_checkpoint(empty_checkpoint(), {}, 1), metadata, {}
            )
        )

    async def ids(asked: Any, **more: Any) -> list[Any]:
        return [saved.config async for saved in saver.alist(asked, **more)]

    assert await ids(None) == stored[::-1]
    assert await ids(None, filter={"step": 1}) == [stored[2], stored[0]]
    assert await ids(None, filter={"step": 1, "source": "update"}) == []
    assert await ids(config("a")) == [stored[1], stored[0]]
    assert await ids(config("a", checkpoint_ns="")) == [stored[0]]
    assert await ids(None, before=stored[2], limit=1) == [stored[1]]
    assert await ids(config("a", checkpoint_id=stored[0]["configurable"]["checkpoint_id"])) == [stored[0]]


async def test_sends_of_old_checkpoints_come_from_their_parents_writes(
    log: Log, pool: Pool, saver: TurnlogSaver
) -> None:
    first = empty_checkpoint()
    stored = await saver.aput(config(checkpoint_ns=""), first, {}, {})
    await saver.aput_writes(stored, [(TASKS, "send-1"), (TASKS, "send-2")], "task-1")
    await saver.aput_writes(stored, [(TASKS, "send-3")], "task-2")
    second = await saver.aput(stored, create_checkpoint(first, {}, 1), {}, {})
    for reader in (saver, TurnlogSaver(log, pool)):
        before = await reader.aget_tuple(stored)
        assert before is not None
        assert before.checkpoint["channel_values"] == {}
        for asked in (second, config()):
            loaded = await reader.aget_tuple(asked)
            assert loaded is not None
            assert loaded.checkpoint["channel_values"] == {TASKS: ["send-1", "send-2", "send-3"]}
            assert TASKS in loaded.checkpoint["channel_versions"]
    await saver.aput(second, create_checkpoint(first, {}, 2), {}, {})
    await saver.aprune(["t"])
    assert len([saved async for saved in saver.alist(config())]) == 1


async def test_a_call_of_a_subgraph_goes_with_the_checkpoint_it_began_from(saver: TurnlogSaver) -> None:
    older = await saver.aput(config(checkpoint_ns=""), {**empty_checkpoint(), "v": 4}, {}, {})
    newest = await saver.aput(older, {**empty_checkpoint(), "v": 4}, {}, {})
    began = {
        "finished:1": older["configurable"]["checkpoint_id"],
        "interrupted:2": newest["configurable"]["checkpoint_id"],
        "running:3": "not saved yet",
        "stays": older["configurable"]["checkpoint_id"],
    }
    for ns, root in began.items():
        for _ in range(2):
            await saver.aput(config(checkpoint_ns=ns), {**empty_checkpoint(), "v": 4}, {"parents": {"": root}}, {})
    await saver.aprune(["t"])
    kept = [saved.config["configurable"]["checkpoint_ns"] async for saved in saver.alist(config())]
    assert sorted(kept) == ["", "interrupted:2", "running:3", "stays"]


async def test_a_refused_prune_changes_nothing(saver: TurnlogSaver) -> None:
    for thread in ("a", "b", "ab"):
        await chat(saver).ainvoke({"messages": [HumanMessage("hi")]}, config(thread))
    with pytest.raises(TypeError, match="not a str"):
        await saver.aprune("ab")
    with pytest.raises(ValueError, match="keep_all"):
        await saver.aprune(["a"], strategy="keep_all")
    assert len([saved async for saved in saver.alist(None)]) == 9
    await saver.aprune(["a", "ab"], strategy="delete")
    assert len([saved async for saved in saver.alist(None)]) == 3


class Reversing:
    """A trivial cipher that shows what is stored."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversing", uuid4().bytes + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[16:][::-1]


class Case(TypedDict):
    note: str
    code: int
    visits: int


def visited(saver: TurnlogSaver) -> Any:
    """Returns a graph that counts visits; its other channels stay as they are."""
    graph = StateGraph(Case)
    graph.add_node("visit", lambda state: {"visits": state.get("visits", 0) + 1})
    graph.add_edge(START, "visit")
    return graph.compile(checkpointer=saver)


async def test_an_encrypting_serializer_encrypts_text_and_numbers(log: Log, pool: Pool, db: Connection) -> None:
    saver = TurnlogSaver(log, pool, serde=EncryptedSerializer(Reversing()))
    graph = visited(saver)
    await graph.ainvoke({"note": "my secret", "code": 448811}, config())
    await graph.ainvoke({}, config())
    await saver.acopy_thread("t", "copy")
    for thread in ("t", "copy"):
        state = await visited(TurnlogSaver(log, pool, serde=EncryptedSerializer(Reversing()))).aget_state(
            config(thread)
        )
        assert state.values == {"note": "my secret", "code": 448811, "visits": 2}
    stored = str(await rows(db, "SELECT checkpoint::text || metadata::text FROM checkpoints"))
    stored += str(await rows(db, "SELECT blob FROM checkpoint_blobs"))
    assert "secret" not in stored and "448811" not in stored
    again = len(await rows(db, "SELECT 1 FROM checkpoint_blobs WHERE channel = 'note' AND thread_id = 't'"))
    assert again == 1


async def test_values_that_were_stored_unencrypted_are_read_and_then_encrypted(
    log: Log, pool: Pool, db: Connection
) -> None:
    await visited(TurnlogSaver(log, pool)).ainvoke({"note": "my secret", "code": 448811}, config())
    graph = visited(TurnlogSaver(log, pool, serde=EncryptedSerializer(Reversing())))
    old = await graph.aget_state(config())
    assert old.values == {"note": "my secret", "code": 448811, "visits": 1}
    await graph.ainvoke({}, config())
    for saver in (TurnlogSaver(log, pool, serde=EncryptedSerializer(Reversing())), graph.checkpointer):
        newest = await visited(saver).aget_state(config())
        assert newest.values == {"note": "my secret", "code": 448811, "visits": 2}
    later = "SELECT checkpoint::text FROM checkpoints WHERE checkpoint_id > %s"
    stored = await (await db.execute(later, (old.config["configurable"]["checkpoint_id"],))).fetchall()
    assert stored and "secret" not in str(stored) and "448811" not in str(stored)


async def test_an_encrypted_snapshot_of_two_branches_is_copied(log: Log, pool: Pool, db: Connection) -> None:
    saver = TurnlogSaver(log, pool, serde=EncryptedSerializer(Reversing()))
    at, shown, versions = config(checkpoint_ns=""), list[Any](), list[Any]([{"lines": "1"}, {"lines": "2"}, {}])
    for new in versions:
        value = {"lines": _DeltaSnapshot([f"my secret {(new or versions[0])['lines']}"])}
        checkpoint = empty_checkpoint()
        checkpoint |= {"channel_values": value, "channel_versions": new or versions[0]}
        put = await saver.aput(at, checkpoint, {}, new)
        at = put if not shown else at  # the second and the third follow the first
        shown.insert(0, value)
    await saver.acopy_thread("t", "copy")
    copies = [saved.checkpoint["channel_values"] async for saved in saver.alist(config("copy"))]
    assert copies == shown
    marked = await rows(db, "SELECT checkpoint -> 'channel_values' FROM checkpoints WHERE thread_id = 'copy'")
    assert marked == [({"lines": True},)] * 3


async def test_an_encrypting_serializer_leaves_nothing_unencrypted(log: Log, pool: Pool, db: Connection) -> None:
    saver = MirroredSaver(TurnlogSaver(log, pool, serde=EncryptedSerializer(Reversing())))
    graph = chat(saver, [AIMessage("my secret too")])
    for _ in range(3):
        await graph.ainvoke({"messages": [HumanMessage("my secret")]}, config())
    assert len(await history(graph)) == 9
    assert await turns(db) == []
    lists = await rows(db, "SELECT json_array_length(items) FROM checkpoint_lists ORDER BY first")
    assert lists == [(1,)] * 6
    everything = await rows(db, "SELECT checkpoint::text || metadata::text FROM checkpoints")
    everything += await rows(db, "SELECT items::text FROM checkpoint_lists")
    assert "secret" not in str(everything)


async def test_a_value_that_cannot_be_written_is_an_error_and_the_thread_goes_on(
    saver: TurnlogSaver, db: Connection
) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config())
    newest = await saver.aget_tuple(config())
    assert newest is not None
    with pytest.raises(TypeError):
        await saver.aput_writes(newest.config, [("a", [HumanMessage("lost"), object()])], "task")
    with pytest.raises(EventTooLarge, match="max_payload"):
        await saver.aput_writes(newest.config, [("a", b"x" * 9_000_000)], "task")
    await graph.ainvoke({"messages": [HumanMessage("two")]}, config())
    assert len(await history(graph)) == 6
    assert [content for _, content in await turns(db)] == ["one", "I saw 1", "two", "I saw 3"]


@pytest.mark.nightly
@pytest.mark.parametrize("within", [False, True], ids=["in the graph", "in a subgraph"])
@pytest.mark.parametrize("runs", [0, 1])
async def test_nothing_is_recorded_of_a_run_whose_input_cannot_be_stored(
    saver: TurnlogSaver, db: Connection, settled: Any, runs: int, within: bool
) -> None:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"I saw {len(state['messages'])}")]}

    async def more(state: MessagesState) -> Any:
        return {"messages": [AIMessage("and more")]}

    first: Any = one_node(MessagesState, answer, None) if within else answer
    builder = StateGraph(MessagesState).add_node("answer", first).add_node(more).add_edge(START, "answer")
    graph = builder.add_edge("answer", "more").compile(checkpointer=saver)
    whole = ["one", "I saw 1", "and more"] * runs
    for _ in range(runs):
        await graph.ainvoke({"messages": [HumanMessage("one")]}, config())
    with pytest.raises((EventTooLarge, NotWritten), match="the server takes"):
        await graph.ainvoke({"messages": [HumanMessage("x" * 9_000_000)]}, config())
    await settled()
    assert [content for _, content in await turns(db)] == whole
    assert [m.content for m in (await graph.aget_state(config())).values.get("messages", [])] == whole
    state = await graph.aget_state(config())
    again = {"messages": [HumanMessage("two")]}
    with pytest.raises((EventTooLarge, NotWritten), match="the server takes"):
        await graph.ainvoke({"messages": [HumanMessage("x" * 9_000_000)]}, config())
    await graph.ainvoke(again, state.config if runs else config())
    await settled()
    assert [content for _, content in await turns(db)] == [*whole, "two", f"I saw {len(whole) + 1}", "and more"]


async def test_async_methods_may_be_awaited_in_any_event_loop(saver: TurnlogSaver) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config())

    async def elsewhere() -> tuple[list[str], int]:
        result = await graph.ainvoke({"messages": [HumanMessage("two")]}, config())
        listed = [saved async for saved in saver.alist(config())]
        await saver.adelete_thread("other")
        return [m.content for m in result["messages"]], len(listed)

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == (["one", "I saw 1", "two", "I saw 3"], 6)
    assert len(await history(graph)) == 6


async def test_one_write_too_large_does_not_take_others_with_it(saver: TurnlogSaver) -> None:
    stored = await saver.aput(config(checkpoint_ns=""), {**empty_checkpoint(), "v": 4}, {}, {})
    values = {"task-1": "first", "task-2": b"x" * 9_000_000, "task-3": "third"}

    async def write(task: str) -> BaseException | None:
        try:
            await saver.aput_writes(stored, [("a", values[task])], task)
        except (EventTooLarge, NotWritten) as error:
            return error
        return None

    first_tries = await asyncio.gather(*map(write, values))
    assert isinstance(first_tries[1], EventTooLarge)
    # The order of concurrent calls is not fixed: calls after the one that is too large are told to run again.
    again = [task for task, error in zip(values, first_tries, strict=True) if isinstance(error, NotWritten)]
    assert [await write(task) for task in again] == [None] * len(again)
    loaded = await saver.aget_tuple(stored)
    assert loaded is not None
    assert sorted(loaded.pending_writes or []) == [("task-1", "a", "first"), ("task-3", "a", "third")]


@pytest.mark.parametrize("thread", ["", "nul \x00", "x" * 600])
async def test_ids_that_no_store_can_hold_are_refused(saver: TurnlogSaver, thread: str) -> None:
    with pytest.raises(InvalidToken, match="thread id"):
        await saver.aput(config(thread, checkpoint_ns=""), empty_checkpoint(), {}, {})
    with pytest.raises(InvalidToken, match="thread id"):
        await saver.aget_tuple(config(thread))


async def test_the_user_of_a_run_is_the_user_of_its_turns(saver: TurnlogSaver, db: Connection, settled: Any) -> None:
    await chat(saver).ainvoke({"messages": [HumanMessage("hi")]}, config(user_id="ann"))
    await settled()
    assert await rows(db, "SELECT DISTINCT user_id FROM messages") == [("ann",)]


async def test_versions_sort_and_two_forks_of_a_version_differ(saver: TurnlogSaver) -> None:
    version = saver.get_next_version(None, None)
    for _ in range(12):
        following = saver.get_next_version(version, None)
        assert following > version
        assert following != saver.get_next_version(version, None)
        version = following
