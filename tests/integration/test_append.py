"""Events that are appended to a real JetStream are stored once and in order, even after failures."""

import asyncio

import pytest
from helpers.sample_events import text_of, turn
from helpers.servers import end_deduplication_window, now

from turnlog.events.append import FEW, MAX_BATCH, Appender
from turnlog.events.codec import encode
from turnlog.events.contracts import Event, ThreadRenamed
from turnlog.events.errors import (
    EventTooLarge,
    InvalidToken,
    LogClosed,
    LogFull,
    LogUnavailable,
    StreamDrift,
    WrongExpectedVersion,
)
from turnlog.events.log import Log, connect_nats
from turnlog.events.publish import Appended
from turnlog.events.stream import StreamOptions, stream_config
from turnlog.events.subjects import STREAM, publish_subject

pytestmark = pytest.mark.slow


async def texts(log: Log, thread: str = "t") -> list[str]:
    return [text_of(recorded.event) async for recorded in log.read_thread("default", thread)]


def turns(n: int, thread: str = "t") -> list[Event]:
    return [turn(str(i), thread=thread) for i in range(n)]


async def test_an_append_and_its_retry_return_the_same_sequence(log: Log) -> None:
    event = turn()
    first = await log.append(event)
    again = await log.append(event)
    assert (first.event_id, first.seq, first.duplicate) == (event.id, 1, False)
    assert (again.seq, again.duplicate) == (1, True)
    assert await texts(log) == ["hello"]


async def test_an_event_comes_back_as_it_was(log: Log) -> None:
    event = turn("你好 a\0b", thread="a.b *> 🎓", tenant="acme", user="ann")
    await log.append(event)
    (recorded,) = [r async for r in log.read_thread("acme", "a.b *> 🎓")]
    assert (recorded.event, recorded.seq, recorded.partition) == (event, 1, 0)
    assert abs((recorded.stored_at - now()).total_seconds()) < 60


async def test_expected_version_lets_one_of_two_writers_through(log: Log) -> None:
    assert (await log.append(turn("a"), expected=0)).seq == 1
    await log.append(turn("other", thread="u"))
    results = await asyncio.gather(*(log.append(turn(text), expected=1) for text in ("b", "c")), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Appended", "WrongExpectedVersion"]
    assert len(await texts(log)) == 2


async def test_a_stale_expected_version_is_refused_with_advice(log: Log) -> None:
    await log.append(turn())
    with pytest.raises(WrongExpectedVersion, match=r"has changed since sequence 0.*read it again"):
        await log.append(turn(), expected=0)
    with pytest.raises(WrongExpectedVersion):
        await log.append_many(turns(3), expected=0)
    assert await texts(log) == ["hello"]


async def test_a_retried_append_with_an_expected_version_does_not_conflict_with_itself(log: Log) -> None:
    event = turn()
    await log.append(event, expected=0)
    await log.append(turn("next"))
    again = await log.append(event, expected=0)
    assert (again.seq, again.duplicate) == (1, True)


async def test_a_retry_after_the_deduplication_window_does_not_conflict_with_itself(log: Log) -> None:
    event = turn()
    await log.append(event, expected=0)
    await end_deduplication_window(log)
    assert (await log.append(event, expected=0)).duplicate
    assert await texts(log) == ["hello"]


async def test_an_expected_batch_guards_the_thread_of_its_first_event(log: Log) -> None:
    await log.append_many(turns(3), expected=0)
    head = await log.thread_head("default", "t")
    assert [a.seq for a in await log.append_many(turns(2), expected=head)] == [4, 5]


async def test_a_batch_is_stored_whole_or_not_at_all(log: Log) -> None:
    with pytest.raises(InvalidToken):
        await log.append_many([*turns(3), turn(thread="")])
    with pytest.raises(EventTooLarge):
        await log.append_many([*turns(3), turn("x" * 20_000_000)])
    assert await log.head() == 0


async def test_a_batch_with_ids_already_stored_adds_only_the_new_ones(log: Log) -> None:
    events = turns(6)
    await log.append_many(events[1:3])
    await log.append(events[4])
    results = await log.append_many(events)
    assert [a.duplicate for a in results] == [False, True, True, False, True, False]
    assert [a.event_id for a in results] == [event.id for event in events]
    assert sorted(await texts(log)) == [str(i) for i in range(6)]


async def test_the_same_event_twice_in_a_batch_is_stored_once(log: Log) -> None:
    event = turn()
    results = await log.append_many([event, turn("b"), event])
    assert [a.seq for a in results] == [1, 2, 1]
    assert await texts(log) == ["hello", "b"]


async def test_results_that_belong_together_are_stored_together_or_not_at_all(log: Log) -> None:
    events = turns(4)
    assert await log.append_atomic(events[:2])
    assert not await log.append_atomic(events[1:])
    assert await log.append_atomic(events[2:])
    assert await texts(log) == ["0", "1", "2", "3"]
    with pytest.raises(ValueError, match="more than one atomic batch"):
        await log.append_atomic(turns(MAX_BATCH + 1))


async def batch_ids(log: Log) -> list[str | None]:
    """Returns the atomic batch id of each stored message."""
    js, count = log.nc.jetstream(), await log.head()
    headers = [(await js.get_msg(STREAM, seq)).headers or {} for seq in range(1, count + 1)]
    return [header.get("Nats-Batch-Id") for header in headers]


async def test_a_few_events_in_order_go_one_by_one_and_many_as_a_batch(log: Log) -> None:
    few, many = turns(FEW), turns(FEW + 1, thread="many")
    assert [done.seq for done in await log.append_in_order(few)] == list(range(1, FEW + 1))
    await log.append_in_order(many)
    assert await texts(log) == [text_of(event) for event in few]
    assert await texts(log, "many") == [text_of(event) for event in many]
    batches = await batch_ids(log)
    assert batches[:FEW] == [None] * FEW
    assert len(set(batches[FEW:])) == 1 and None not in batches[FEW:]


async def test_a_few_events_in_order_are_looked_at_before_the_first_is_sent(log: Log) -> None:
    with pytest.raises(EventTooLarge):
        await log.append_in_order([turn(), turn("x" * 20_000_000)])
    assert await log.head() == 0


async def test_the_retry_of_a_few_events_in_order_adds_only_the_new_ones(log: Log) -> None:
    events = turns(3)
    await log.append_in_order(events[:2])
    assert [(done.seq, done.duplicate) for done in await log.append_in_order(events)] == [
        (1, True),
        (2, True),
        (3, False),
    ]


async def test_a_few_concurrent_appends_keep_each_callers_order_and_fail_alone(log: Log) -> None:
    good, stale = turns(3), turn("late", thread="other")
    await log.append(turn(thread="other"))
    results = await asyncio.gather(
        *(log.append(event) for event in good), log.append(stale, expected=0), return_exceptions=True
    )
    assert [type(result) for result in results] == [Appended] * 3 + [WrongExpectedVersion]
    assert await texts(log) == [text_of(event) for event in good]
    assert set(await batch_ids(log)) == {None}


async def test_more_events_than_one_batch_holds_keep_their_order(log: Log) -> None:
    events = turns(2 * MAX_BATCH + 7)
    results = await log.append_many(events)
    assert [a.seq for a in results] == list(range(1, len(events) + 1))
    assert await texts(log) == [str(i) for i in range(len(events))]
    assert all(a.duplicate for a in await log.append_many(events))


async def test_five_thousand_concurrent_appends_share_syncs_and_keep_each_callers_order(log: Log) -> None:
    async def caller(name: str) -> list[int]:
        return [(await log.append(turn(str(i), thread=name))).seq for i in range(10)]

    sequences = await asyncio.gather(*(caller(f"caller-{n}") for n in range(500)))
    assert sorted(seq for mine in sequences for seq in mine) == list(range(1, 5001))
    assert all(mine == sorted(mine) for mine in sequences)
    assert await texts(log, "caller-7") == [str(i) for i in range(10)]


async def test_one_bad_event_among_concurrent_appends_fails_alone(log: Log) -> None:
    results = await asyncio.gather(
        *(log.append(event) for event in [*turns(20), turn(thread="")]), return_exceptions=True
    )
    assert [type(r).__name__ for r in results] == ["Appended"] * 20 + ["InvalidToken"]


async def test_a_cancelled_append_does_not_cancel_others(log: Log) -> None:
    waiting = [asyncio.create_task(log.append(event)) for event in turns(10)]
    await asyncio.sleep(0)
    waiting[3].cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(r).__name__ for r in results].count("Appended") == 9


async def test_a_lost_ack_is_settled_by_reading_back(log: Log) -> None:
    deaf = Appender(log.nc, ack_s=0.00001)
    single, many = turn("one"), [turn("two"), turn("three")]
    assert (await deaf.append(single)).seq == 1
    assert (await deaf.append(single, expected=0)).seq == 1
    assert [a.seq for a in await deaf.append_many(many)] == [2, 3]
    assert await texts(log) == ["one", "two", "three"]


async def test_a_turn_of_twenty_megabytes_is_refused_with_advice(log: Log) -> None:
    with pytest.raises(EventTooLarge, match=r"20,000,\d{3} bytes; the server takes .* image block"):
        await log.append(turn("x" * 20_000_000))
    assert await log.head() == 0


async def test_turns_that_just_fit_are_batched_by_size(log: Log) -> None:
    events = [turn("x" * 7_000_000) for _ in range(5)]
    assert [a.seq for a in await log.append_many(events)] == [1, 2, 3, 4, 5]


async def test_a_full_stream_refuses_and_keeps_every_event_it_took(nats_url: str) -> None:
    small = StreamOptions(max_bytes=60_000)
    log = await Log.connect(nats_url, small)
    try:
        taken = 0
        with pytest.raises(LogFull, match="TURNLOG_STREAM_MAX_BYTES"):
            for i in range(100):
                await log.append(turn(f"{i} " + "x" * 2_000))
                taken += 1
        with pytest.raises(LogFull):
            await log.append_many(turns(50))
        assert taken > 10
        assert [text.split()[0] for text in await texts(log)] == [str(i) for i in range(taken)]
    finally:
        await log.close()


async def test_a_stream_with_other_settings_is_refused_and_the_difference_named(log: Log, nats_url: str) -> None:
    with pytest.raises(StreamDrift, match="subject transform"):
        await Log.connect(nats_url, StreamOptions(partitions=4))


async def test_a_larger_limit_lets_a_full_stream_take_events_again(nats_url: str) -> None:
    full = await Log.connect(nats_url, StreamOptions(max_bytes=20_000))
    with pytest.raises(LogFull):
        await full.append(turn("x" * 30_000))
    await full.close()
    for options in (StreamOptions(max_bytes=200_000), StreamOptions()):
        log = await Log.connect(nats_url, options)
        await log.append(turn("x" * 30_000))
        await log.close()


async def test_a_stream_that_would_forget_events_is_refused(log: Log, nats_url: str) -> None:
    config = stream_config(StreamOptions())
    config.max_age = 3600
    await log.nc.jetstream().update_stream(config)
    with pytest.raises(StreamDrift, match="max_age"):
        await Log.connect(nats_url, StreamOptions())


async def test_with_partitions_each_thread_stays_in_one(nats_url: str) -> None:
    log = await Log.connect(nats_url, StreamOptions(partitions=4))
    try:
        await log.append_many([turn(str(i), thread=f"t{i % 20}") for i in range(100)], expected=0)
        partitions = [{r.partition async for r in log.read_thread("default", f"t{n}")} for n in range(20)]
        assert all(len(numbers) == 1 for numbers in partitions)
        assert len(set().union(*partitions)) > 1
        heads = await log.heads()
        assert max(heads.values()) == 100
        await log.append(Event(source="test", tenant="default", thread="t0", data=ThreadRenamed(label="later")))
        assert await log.heads(turns_of="default") == heads
    finally:
        await log.close()


async def test_a_foreign_client_needs_only_the_subject_and_the_envelope(log: Log) -> None:
    event = turn("from another language")
    await log.nc.jetstream().publish(publish_subject("default", "t", "turn_recorded"), encode(event))
    assert await texts(log) == ["from another language"]


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("127.0.0.1:1", "Connect call failed"),
        ("127.0.0.1:port", "invalid connect url"),
        ("no-such.invalid:1", "Name or service not known|name resolution|TimeoutError"),
    ],
)
async def test_an_unreachable_server_is_reported_without_the_secret(address: str, cause: str) -> None:
    with pytest.raises(LogUnavailable, match=f"cannot connect to NATS.*({cause}).*turnlog up") as caught:
        await connect_nats(f"nats://s3cret@{address}", "test", timeout_s=0.5)
    assert "s3cret" not in str(caught.value)


async def test_an_append_to_a_closed_log_fails_at_once(nats_url: str) -> None:
    log = await Log.connect(nats_url, StreamOptions())
    assert not log.is_closed
    await log.close()
    assert log.is_closed
    for refused in (
        lambda: log.append(turn()),
        lambda: log.append(turn(), expected=0),
        lambda: log.append_many(turns(3)),
        lambda: log.append_in_order(turns(3)),
        lambda: log.append_atomic(turns(3)),
    ):
        with pytest.raises(LogClosed, match="this Log is closed, and nothing was stored"):
            await refused()
