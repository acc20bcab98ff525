"""Copies of sessions are never of another log, never outdated, and always equal to the log in the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
from helpers.nightly import examples
from helpers.sample_events import event, turn
from helpers.servers import eventually
from helpers.session_processes import (
    KV_STREAM,
    Processes,
    contents,
    conversation,
    key,
    slots,
    turn_data,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from turnlog.agent.conversations.sessions import bucket, session_cache
from turnlog.agent.conversations.sessions.tail import Copy, from_log
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import (
    Erased,
    EventData,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SessionCreated,
    ThreadDeleted,
    ThreadRenamed,
)
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import SESSION_BUCKET, STREAM
from turnlog.projectors.engine.engine import Runner

Settled = Callable[..., Awaitable[None]]


@pytest.fixture
async def bench(log: Log, database_url: str) -> AsyncIterator[Processes]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(connection_pool(database_url))
        yield Processes(log, pool, stack)


async def test_a_copy_of_another_log_is_ignored(bench: Processes, nats_url: str) -> None:
    await conversation(await bench.process())
    await bench.log.nc.jetstream().delete_stream(STREAM)
    await bench.reconnect(nats_url)  # like a restart, because a running process refuses the new log
    sessions = await bench.process()
    with pytest.raises(NotFound):
        await sessions.get("t")
    state = await sessions.create("t", user="cy")
    assert await (await bench.process()).get_with_level("t") == (state, "kv")


async def test_a_copy_in_an_unknown_format_is_ignored(
    bench: Processes, running_projectors: Runner, settled: Settled
) -> None:
    state = await conversation(await bench.process())
    await settled()
    kv = await bench.log.nc.jetstream().key_value(SESSION_BUCKET)
    await kv.put(key("t"), b'{"origin": "?", "state": 1}')
    assert await (await bench.process()).get_with_level("t") == (state, "postgres")
    assert await (await bench.process()).get_with_level("t") == (state, "kv")


async def test_an_old_copy_in_the_bucket_is_completed_from_the_log(bench: Processes) -> None:
    first, second = await bench.process(), await bench.process()
    await conversation(first)
    old = await bench.in_bucket()
    state = await second.record("t", [turn_data("new")])
    assert old is not None
    kv = await bench.log.nc.jetstream().key_value(SESSION_BUCKET)
    await kv.put(key("t"), old)
    assert await (await bench.process()).get_with_level("t") == (state, "kv")


async def test_a_session_that_is_too_large_for_the_bucket_is_read_from_elsewhere(
    bench: Processes, running_projectors: Runner, settled: Settled
) -> None:
    sessions = await bench.process()
    await conversation(sessions)
    assert await bench.in_bucket() is not None
    state = await sessions.record("t", [turn_data("x" * bucket.MAX_VALUE_BYTES)])
    assert await bench.in_bucket() is None
    await settled()
    assert await (await bench.process()).get_with_level("t") == (state, "postgres")


async def test_copies_in_the_bucket_end_after_half_an_hour(bench: Processes) -> None:
    await bench.process()
    config = (await bench.log.nc.jetstream().stream_info(KV_STREAM)).config
    assert (config.max_age, config.max_msgs_per_subject) == (1800, 1)


async def test_the_least_used_copies_leave_memory(bench: Processes) -> None:
    copies = session_cache.HotCopies(bench.log.nc, "default", keep=3)
    before = bench.log.nc._subs.copy()
    for thread in "abcd":
        await copies.join(thread)
        copies.put(thread, Copy(None, 1), None, 0)
    assert [thread for thread in "abcd" if copies.find(thread)] == ["b", "c", "d"]
    await copies.close()
    assert bench.log.nc._subs.keys() == before.keys()


async def test_writes_on_another_connection_are_seen_soon(bench: Processes, nats_url: str) -> None:
    sessions = await bench.process()
    await conversation(sessions)
    other = await Log.connect(nats_url, StreamOptions())
    for n in range(10):
        await other.append(turn(f"from elsewhere {n}"))

        async def is_seen(text: str = f"from elsewhere {n}") -> bool:
            return bool(contents(await sessions.get("t"))[-1] == text)

        await eventually(is_seen)
    await other.close()


async def test_writes_while_the_connection_is_lost_are_seen_when_it_is_back(bench: Processes, nats_url: str) -> None:
    other = await Log.connect(nats_url, StreamOptions())
    sessions = await bench.process()
    await conversation(sessions)
    nc = bench.log.nc
    assert nc._transport is not None
    nc._transport.close()
    await other.append(turn("meanwhile"))
    assert (await sessions.get_with_level("t"))[1] == "ram"

    async def is_seen() -> bool:
        return bool(contents(await sessions.get("t"))[-1] == "meanwhile")

    await eventually(is_seen)
    assert nc.stats["reconnects"] == 1
    await other.close()


CHANGES: st.SearchStrategy[Sequence[EventData]] = st.one_of(
    st.just([turn_data("why?"), turn_data("so", "assistant", agent="doctor")]),
    st.builds(lambda n: slots(n=n), st.integers(0, 9)),
    st.builds(
        lambda n: [
            SegmentCheckpointed(summary=str(n), recent_turns=n, covered_seq=n, turns_covered=n, trigger="manual")
        ],
        st.integers(1, 40),
    ),
    st.just([SegmentCheckpointFailed(attempts=3, error="away")]),
    st.just([SessionCreated(agent="x")]),
    st.just([ThreadRenamed(label="x")]),
    st.sampled_from([[ThreadDeleted(), SessionCreated()], [Erased(), SessionCreated(), turn_data()]]),
)


@settings(
    max_examples=examples(36),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(CHANGES, st.sampled_from(["raw", "a", "b", "change", "new", "kv"])), max_size=25))
async def test_every_copy_equals_the_log_after_any_sequence_of_events(
    bench: Processes, steps: list[tuple[Sequence[EventData], str]]
) -> None:
    thread = f"t{uuid4()}"
    processes = {"a": await bench.process(), "b": await bench.process()}
    await processes["a"].create(thread, user="ann")
    for data, who in steps:
        if who == "raw":
            await bench.log.append_many([event(change, thread) for change in data])
        elif who == "change":
            await processes["b"].change(thread, lambda state, data=data: data)  # type: ignore[misc]
        elif who in processes:
            await processes[who].record(thread, data)
        elif who == "new":
            processes["a"] = await bench.process()
        else:
            await bench.empty_bucket()
        told = await from_log(bench.log, "default", thread)
        assert told is not None
        for sessions in processes.values():
            assert await sessions.get(thread) == told.state


async def test_many_readers_at_once_agree(bench: Processes) -> None:
    await conversation(await bench.process())
    await bench.empty_bucket()
    reader = await bench.process()
    states = await asyncio.gather(*(reader.get("t") for _ in range(50)))
    assert all(state == states[0] for state in states)
