"""A real stream is read in order and without gaps; otherwise reading fails with an error."""

import asyncio

import pytest
from helpers.sample_events import text_of, turn
from helpers.servers import eventually

from turnlog.events.append import all_stored
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import Event, ThreadRenamed
from turnlog.events.errors import GapInLog, InvalidEvent, NotFound
from turnlog.events.log import Log
from turnlog.events.publish import Key
from turnlog.events.read import BATCH_BYTES, PULL_BYTES, OrderedReader, read_to
from turnlog.events.stored import Stored, recorded
from turnlog.events.subjects import STREAM, partition_filter, thread_filter

pytestmark = pytest.mark.slow


async def fill(log: Log, n: int, threads: int = 3) -> None:
    await log.append_many([turn(str(i), thread=f"t{i % threads}") for i in range(n)])


async def read_until(reader: OrderedReader, seq: int) -> list[Stored]:
    stored: list[Stored] = []
    while not stored or stored[-1].seq < seq:
        stored += await reader.batch(limit=100)
    return stored


async def test_everything_comes_in_order_from_a_log_of_any_size(log: Log) -> None:
    await fill(log, 5_000)
    async with log.reader(0, 1) as reader:
        records = [stored async for stored in reader.until_caught_up()]
    assert [stored.seq for stored in records] == list(range(1, 5_001))
    assert [text_of(recorded(stored).event) for stored in records[:3]] == ["0", "1", "2"]
    assert records[-1].pending == 0


async def test_a_reader_starts_at_its_sequence_and_continues_with_new_events(log: Log) -> None:
    await fill(log, 10)
    async with log.reader(0, 8) as reader:
        assert [s.seq for s in await read_until(reader, 10)] == [8, 9, 10]
        assert await reader.batch(wait_s=0.05) == []
        await log.append(turn("live"))
        assert [s.seq for s in await reader.batch(wait_s=5)] == [11]


async def test_an_interrupted_wait_loses_and_repeats_nothing(log: Log) -> None:
    async with log.reader(0, 1) as reader, asyncio.timeout(180):
        waiting = asyncio.create_task(reader.batch(wait_s=3_600))
        await log.nc.flush()
        reader.wake()
        assert await waiting == []
        await fill(log, 3)
        assert [stored.seq for stored in await read_until(reader, 3)] == [1, 2, 3]


async def test_a_batch_is_no_larger_than_asked_for(log: Log) -> None:
    await fill(log, 50)
    async with log.reader(0, 1) as reader:
        sizes = [len(await reader.batch(limit=20, wait_s=5)) for _ in range(2)]
        assert max(sizes) <= 20


async def test_a_reader_knows_what_is_ahead(log: Log) -> None:
    await fill(log, 30)
    async with log.reader(0, 1) as reader:
        taken = len(await reader.batch(limit=10, wait_s=5))
        while taken < 30:
            assert reader.ahead in (0, 30 - taken)  # 0 if no more messages have arrived
            taken += len(await reader.batch(limit=10, wait_s=5))
        assert reader.ahead == 0


@pytest.mark.nightly
async def test_ten_events_of_seven_megabytes_come_through_smaller_pulls(log: Log) -> None:
    body = "x" * 7_000_000
    await log.append_many([turn(body) for _ in range(10)])
    assert 10 * len(body) > PULL_BYTES
    async with log.reader(0, 1) as reader:
        sizes = [(stored.seq, len(stored.body) > len(body)) async for stored in reader.until_caught_up()]
    assert sizes == [(seq, True) for seq in range(1, 11)]


@pytest.mark.nightly
async def test_large_messages_come_in_batches_bounded_by_bytes(log: Log) -> None:
    """Earlier messages are applied without waiting for large ones, and not all large ones are kept in memory."""
    large = "x" * (BATCH_BYTES // 2)
    texts = ["small", *[large] * 20, "small too"]
    await log.append_many([turn(text) for text in texts])
    batches: list[list[Stored]] = []
    async with log.reader(0, 1) as reader:
        while not batches or batches[-1][-1].pending:
            batches += [batch] if (batch := await reader.batch(wait_s=5)) else []
    assert [stored.seq for batch in batches for stored in batch] == list(range(1, len(texts) + 1))
    assert all(len(batch) == 1 or sum(len(stored.body) for stored in batch) <= BATCH_BYTES for batch in batches)


async def test_a_thread_filter_gives_only_that_thread(log: Log) -> None:
    await fill(log, 30)
    await log.append_many([turn("odd id", thread="t.1"), turn("other tenant", thread="t1", tenant="acme")])
    texts = [text_of(r.event) async for r in log.read_thread("default", "t1")]
    assert texts == [str(i) for i in range(1, 30, 3)]
    assert [r.seq async for r in log.read_thread("default", "t1", start_seq=6, through_seq=12)] == [8, 11]
    assert [r.seq async for r in log.read_thread("default", "t.1")] == [31]
    assert [r.seq async for r in log.read_thread("acme", "t1")] == [32]
    assert [r.seq async for r in log.read_thread("default", "nobody")] == []


async def test_a_bounded_read_ends_at_its_bound_though_more_comes(log: Log) -> None:
    await fill(log, 20)
    assert [s.seq async for s in read_to(log.nc, [partition_filter(0)], 5, 9)] == [5, 6, 7, 8, 9]
    assert [s.seq async for s in read_to(log.nc, [partition_filter(0)], 9, 5)] == []


async def test_a_consumer_deleted_under_the_reader_is_a_gap_and_reopening_loses_nothing(log: Log) -> None:
    await fill(log, 100)
    seqs: list[int] = []
    with pytest.raises(GapInLog):
        async with log.reader(0, 1) as reader:
            seqs += [s.seq for s in await read_until(reader, 100)]
            (consumer,) = await log.nc.jetstream().consumers_info(STREAM)
            await log.nc.jetstream().delete_consumer(STREAM, consumer.name)
            await fill(log, 100)
            while seqs[-1] < 200:
                seqs += [s.seq for s in await reader.batch(wait_s=1)]
    async with log.reader(0, seqs[-1] + 1) as again:
        seqs += [s.seq for s in await read_until(again, 200)]
    assert seqs == list(range(1, 201))


async def test_a_deleted_message_is_a_gap(log: Log) -> None:
    async with log.reader(0, 1) as reader:
        (consumer,) = await log.nc.jetstream().consumers_info(STREAM)
        await log.append(turn("taken"))
        thief = await log.nc.subscribe("thief")
        await log.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer.name}", b'{"batch": 1}', "thief")
        assert text_of(decode((await thief.next_msg(5)).data)) == "taken"
        await log.append(turn("seen"))
        with pytest.raises(GapInLog, match="consumer sequence 2 came, but 1 was due"):
            await reader.batch(wait_s=5)


async def test_a_closed_reader_leaves_no_consumer(log: Log) -> None:
    await fill(log, 5)
    async with log.reader(0, 1) as reader:
        await reader.batch()

    async def none_left() -> bool:
        return await log.nc.jetstream().consumers_info(STREAM) == []

    await eventually(none_left)


async def test_reading_a_missing_stream_is_an_error(log: Log) -> None:
    await log.nc.jetstream().delete_stream(STREAM)
    with pytest.raises(GapInLog, match="cannot open a reader"):
        async with log.reader(0, 1):
            pass


async def test_heads_are_zero_until_something_is_there(log: Log) -> None:
    assert (await log.head(), await log.partition_head(0), await log.thread_head("default", "t0")) == (0, 0, 0)
    await fill(log, 7)
    assert (await log.head(), await log.partition_head(0), await log.thread_head("default", "t1")) == (7, 7, 5)
    await log.append(Event(source="test", tenant="default", thread="t0", data=ThreadRenamed(label="later")))
    assert (await log.heads(), await log.heads(turns_of="default")) == ({0: 8}, {0: 7})
    assert await log.heads(turns_of="other") == {0: 0}


async def test_one_message_is_found_by_its_sequence(log: Log) -> None:
    await fill(log, 3)
    assert text_of(recorded(await log.stored(2)).event) == "1"
    with pytest.raises(NotFound, match="no event at sequence 9"):
        await log.stored(9)


async def test_stored_ids_give_the_first_place_of_every_event_of_the_threads_asked_for(log: Log) -> None:
    events = [turn(str(i), thread=f"t{i}") for i in range(250)]
    await log.append_many(events)
    threads = [("default", f"t{i}") for i in range(0, 250, 2)]
    assert await all_stored(log.nc, threads) == {Key.of(events[i]): i + 1 for i in range(0, 250, 2)}
    assert await log.stored_ids("default", "t7") == {events[7].id: 8}


async def test_an_event_on_a_subject_that_is_not_its_own_is_refused(log: Log) -> None:
    event = turn(thread="t", tenant="mine")
    await log.nc.jetstream().publish("turnlog.yours.t.turn_recorded", encode(event))
    (stored,) = [s async for s in read_to(log.nc, [thread_filter("yours", "t")], 1, 1)]
    with pytest.raises(InvalidEvent, match=r"says tenant 'mine'.*but was published on"):
        recorded(stored)


async def test_many_readers_at_once_each_get_everything(log: Log) -> None:
    await fill(log, 500)

    async def read() -> list[int]:
        async with log.reader(0, 1) as reader:
            return [s.seq async for s in reader.until_caught_up()]

    assert await asyncio.gather(*(read() for _ in range(5))) == [list(range(1, 501))] * 5


async def test_a_reader_does_not_wait_for_messages_deleted_meanwhile(log: Log) -> None:
    await fill(log, 5)
    async with log.reader(0, 1) as reader:
        for seq in range(1, 6):
            await log.nc.jetstream().delete_msg(STREAM, seq)
        assert reader.pending_at_start == 5
        assert [stored.seq async for stored in reader.until_caught_up()] == []
