"""A session is the same when it is read from memory, the bucket, Postgres or the log, even if a copy is outdated."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from uuid import UUID

import pytest
from helpers.sample_events import event, turn
from helpers.servers import eventually
from helpers.session_processes import THREADS, Processes, contents, conversation, slots, turn_data

from turnlog.agent.conversations.sessions import session_cache
from turnlog.consumers.runtime import connection_pool
from turnlog.events.codec import encode
from turnlog.events.contracts import (
    Erased,
    EventData,
    SegmentCheckpointFailed,
    SessionCreated,
    SessionUpdated,
    ThreadDeleted,
    ThreadRenamed,
)
from turnlog.events.errors import FutureEventVersion, NotFound
from turnlog.events.log import Log
from turnlog.events.subjects import publish_subject
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.models.sessions.state import SessionState

Settled = Callable[..., Awaitable[None]]


@pytest.fixture
async def bench(log: Log, database_url: str) -> AsyncIterator[Processes]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(connection_pool(database_url))
        yield Processes(log, pool, stack)


@pytest.mark.parametrize("thread", THREADS)
async def test_every_level_gives_the_same_session(
    bench: Processes, running_projectors: Runner, settled: Settled, thread: str
) -> None:
    state = await conversation(await bench.process(), thread)
    assert (state.mode, contents(state), state.turn_count) == ("SUMMARY_N", ["Since when?"], 1)
    await settled()
    assert await (await bench.process()).get_with_level(thread) == (state, "kv")
    await bench.empty_bucket()
    assert await (await bench.process()).get_with_level(thread) == (state, "postgres")
    assert await (await bench.process()).get_with_level(thread) == (state, "kv")
    await bench.empty_bucket()
    async with bench.pool.connection() as conn:
        await conn.execute("TRUNCATE sessions")
    last = await bench.process()
    assert await last.get_with_level(thread) == (state, "log")
    assert await last.get_with_level(thread) == (state, "ram")
    assert [level for level, _ in bench.reads][-5:] == ["kv", "postgres", "kv", "log", "ram"]


async def test_changes_by_another_process_are_seen_at_once_at_every_level(
    bench: Processes, running_projectors: Runner, settled: Settled
) -> None:
    first, second = await bench.process(), await bench.process()
    await conversation(first)
    await second.get("t")
    for n in range(5):
        writer, reader = (first, second) if n % 2 else (second, first)
        written = await writer.record("t", [turn_data(f"question {n}"), turn_data(f"answer {n}", "assistant")])
        assert await reader.get_with_level("t") == (written, "ram")
    old = await bench.in_bucket()
    await bench.log.append(turn("by somebody who knows no sessions"))
    assert contents((await (await bench.process()).get_with_level("t"))[0])[-1] == "by somebody who knows no sessions"
    assert await bench.in_bucket() != old
    await settled()
    await bench.empty_bucket()
    await bench.log.append(turn("and later"))
    late = await bench.process()
    assert contents(await late.get("t"))[-1] == "and later"


async def test_a_copy_in_memory_is_returned_without_asking_a_server(
    bench: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # otherwise a slow machine may exceed this time between two reads
    monkeypatch.setattr(session_cache, "SUSPECT_S", 3_600.0)
    sessions = await bench.process()
    state = await conversation(sessions)
    await sessions.get("t")
    sent = bench.log.nc.stats["out_msgs"]
    for _ in range(100):
        assert await sessions.get_with_level("t") == (state, "ram")
    assert bench.log.nc.stats["out_msgs"] == sent


async def test_events_that_are_not_of_sessions_leave_it_as_it_is(bench: Processes) -> None:
    sessions = await bench.process()
    state = await conversation(sessions)
    await bench.log.append(event(ThreadRenamed(label="x")))
    assert await sessions.get("t") == state
    assert (await sessions.change("t", lambda state: slots(a=1))).global_state == {"agent_slots": {"a": 1}}


@pytest.mark.parametrize("removal", [ThreadDeleted(), Erased()])
async def test_a_removed_session_is_at_no_level(
    bench: Processes, running_projectors: Runner, settled: Settled, removal: EventData
) -> None:
    known, other = await bench.process(), await bench.process()
    await conversation(known)
    await other.get("t")
    assert b"doctor" in (await bench.in_bucket() or b"")
    await bench.log.append(event(removal))
    for sessions in (known, other, await bench.process()):
        with pytest.raises(NotFound, match="conversation 't' has no session of yours; `turnlog session create` or"):
            await sessions.get("t")

    async def is_purged() -> bool:
        return await bench.in_bucket() is None

    await eventually(is_purged)
    with pytest.raises(NotFound):
        await known.change("t", lambda state: slots(a=1))
    assert (await known.create("t")).turn_count == 0
    assert (await other.get("t")).user is None


async def test_the_bucket_forgets_a_removed_session_that_nobody_reads_again(bench: Processes) -> None:
    await conversation(await bench.process())
    assert await bench.in_bucket() is not None
    await bench.log.append(event(Erased()))

    async def is_purged() -> bool:
        return await bench.in_bucket() is None

    await eventually(is_purged)


async def test_a_session_that_is_being_removed_gets_no_turn(bench: Processes) -> None:
    """The removal is being stored when the turn is decided, and no process knows of it yet."""
    sessions = await bench.process()
    await conversation(sessions)
    _, written = await asyncio.gather(
        bench.log.append_many([event(ThreadDeleted())]),
        sessions.record("t", [turn_data("late")]),
        return_exceptions=True,
    )
    assert isinstance(written, NotFound)
    assert [recorded.event.type async for recorded in bench.log.read_thread("default", "t")][-1] == "thread_deleted"


async def test_a_thread_without_a_session_has_none_at_any_level(bench: Processes) -> None:
    sessions = await bench.process()
    await bench.log.append_many([turn("one"), turn("two", "assistant")])
    before = await bench.log.head()
    with pytest.raises(NotFound):
        await sessions.record("t", [turn_data()])
    with pytest.raises(NotFound):
        await sessions.get("another")
    assert await bench.log.head() == before
    assert await bench.in_bucket() is None


async def test_a_reset_excludes_everything_before_it(bench: Processes) -> None:
    sessions = await bench.process()
    await conversation(sessions)
    await sessions.create("t", user="bob")
    await sessions.record("t", [turn_data("anew")])
    for reader in (sessions, await bench.process()):
        state = await reader.get("t")
        assert (state.user, contents(state), state.summary, state.turn_count) == ("bob", ["anew"], "", 0)
        assert await reader.checkpoints("t") == []


async def test_after_a_failed_checkpoint_the_segment_is_whole_again_although_no_copy_had_it(bench: Processes) -> None:
    sessions = await bench.process()
    await conversation(sessions)
    state = await sessions.change("t", lambda state: [SegmentCheckpointFailed(attempts=3, error="away")])
    assert (state.mode, state.summary) == ("FULL_HISTORY", "D.")
    assert contents(state) == ["I am dizzy.", "Since when?"]
    assert await (await bench.process()).get("t") == state


async def test_checkpoints_are_listed_at_once_and_from_postgres_later(
    bench: Processes, running_projectors: Runner, settled: Settled
) -> None:
    sessions = await bench.process()
    state = await conversation(sessions)
    (checkpoint,) = await sessions.checkpoints("t")
    assert (checkpoint.checkpoint_id, checkpoint.summary, checkpoint.covered_seq) == (
        state.checkpoint_id,
        "D.",
        state.covered_seq,
    )
    await settled()
    (projected,) = await sessions.checkpoints("t")
    assert projected == checkpoint


async def test_a_late_repeat_of_an_event_counts_once(
    bench: Processes, running_projectors: Runner, settled: Settled
) -> None:
    sessions = await bench.process()
    await sessions.create("t")
    once = turn("answer", "assistant", minutes=-5)
    await bench.log.append(once)
    await sessions.change("t", lambda state: slots(a=1))
    state = await sessions.change("t", lambda state: slots(a=2))
    first = [recorded async for recorded in bench.log.read_thread("default", "t")]
    for repeated in (once, *(recorded.event.model_copy(update={"time": once.time}) for recorded in first[-2:-1])):
        await bench.log.nc.jetstream().publish(publish_subject("default", "t", repeated.type), encode(repeated))
    for reader in (sessions, await bench.process()):
        again = await reader.get("t")
        assert (again.turn_count, again.global_state) == (1, state.global_state)
    await settled()
    await bench.empty_bucket()
    assert await (await bench.process()).get("t") == again


async def test_an_unreadable_event_is_skipped(bench: Processes, running_projectors: Runner, settled: Settled) -> None:
    sessions = await bench.process()
    state = await conversation(sessions)
    for type_ in ("turn_recorded", "session_created", "session_updated", "of_no_type"):
        await bench.log.nc.jetstream().publish(publish_subject("default", "t", type_), b"{")
    assert await sessions.get("t") == state
    state = await sessions.record("t", [turn_data("I go on.")])
    await settled()
    for level in ("kv", "postgres"):
        assert await (await bench.process()).get_with_level("t") == (state, level)
        await bench.empty_bucket()


async def test_an_event_of_a_newer_version_is_never_skipped(bench: Processes) -> None:
    sessions = await bench.process()
    await conversation(sessions)
    newer = json.loads(encode(event(SessionUpdated(global_state={}))))
    newer["dataschema"] = "urn:turnlog:session_updated:9"
    subject = publish_subject("default", "t", "session_updated")
    await bench.log.nc.jetstream().publish(subject, json.dumps(newer).encode())
    for reader in (sessions, await bench.process()):
        with pytest.raises(FutureEventVersion, match=r"thread 't' stops at sequence.*upgrade it"):
            await reader.get("t")
        with pytest.raises(FutureEventVersion):
            await reader.change("t", lambda state: slots(a=1))


async def test_a_text_with_nul_reads_alike_at_every_level(
    bench: Processes, running_projectors: Runner, settled: Settled
) -> None:
    sessions = await bench.process()
    await sessions.create("t")
    state = await sessions.record("t", [turn_data("a\0b"), turn_data("c\0", "assistant")])
    assert contents(state) == ["a\ufffdb", "c\ufffd"]
    await settled()
    await bench.empty_bucket()
    assert await (await bench.process()).get_with_level("t") == (state, "postgres")


async def test_a_repeated_record_with_the_same_ids_changes_nothing(bench: Processes) -> None:
    sessions = await bench.process()
    await sessions.create("t")
    for reader in (sessions, await bench.process()):
        for _ in range(2):
            assert (await reader.record("t", [turn_data("once", "assistant")], ids=[UUID(int=8)])).turn_count == 1


async def test_an_empty_decision_appends_nothing(bench: Processes) -> None:
    sessions = await bench.process()
    await sessions.create("t")
    before = await bench.log.head()
    assert await sessions.change("t", lambda state: []) == await sessions.record("t", [])
    assert await bench.log.head() == before


async def test_an_error_of_decide_reaches_the_caller_and_nothing_is_stored(bench: Processes) -> None:
    sessions = await bench.process()
    await sessions.create("t")
    before = await bench.log.head()

    def refuse(state: SessionState) -> Sequence[EventData]:
        raise LookupError(state.thread)

    with pytest.raises(LookupError, match="t"):
        await sessions.change("t", refuse)
    assert await bench.log.head() == before
    assert (await sessions.change("t", lambda state: slots(a=1))).global_state == {"agent_slots": {"a": 1}}


async def test_thousands_of_newer_events_are_read_completely(bench: Processes) -> None:
    sessions = await bench.process()
    await sessions.create("t")
    await bench.log.append_many([turn(f"message {n}") for n in range(2_500)])
    assert contents(await sessions.get("t")) == [f"message {n}" for n in range(2_500)]


async def test_a_conversation_that_is_older_than_its_session_is_part_of_it_at_every_level(
    bench: Processes, running_projectors: Runner, settled: Settled
) -> None:
    sessions = await bench.process()
    await bench.log.append_many([turn("out"), turn("one"), turn("two", "assistant")])
    state = await sessions.create("t", SessionCreated(after_seq=1, turn_count=1, last_bot_message="two"))
    assert (contents(state), state.turn_count, state.last_bot_message) == (["one", "two"], 1, "two")
    state = await sessions.record("t", [turn_data("three")])
    assert contents(state) == ["one", "two", "three"]
    await settled()
    await bench.empty_bucket()
    assert await (await bench.process()).get_with_level("t") == (state, "postgres")
