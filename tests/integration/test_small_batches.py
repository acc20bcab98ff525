"""Small batches take one round trip to Postgres, are atomic, and are followed by a short rest to collect events."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from conftest import Settled
from helpers.sample_events import event, turn
from helpers.servers import eventually, parked, rows, running_projector
from psycopg.pq import TransactionStatus

from turnlog.events.codec import encode
from turnlog.events.contracts import Recorded, ThreadRenamed
from turnlog.events.log import Log
from turnlog.projectors.engine import engine, positions
from turnlog.projectors.engine.apply import TOGETHER_UP_TO, apply_batch
from turnlog.projectors.engine.changes import Change
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.engine import Runner, next_batch
from turnlog.projectors.engine.incoming import Incoming, incoming
from turnlog.projectors.engine.positions import LIVE, PositionMoved
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.registry import BY_NAME

CONTENTS = "SELECT content FROM messages ORDER BY seq"


async def read(log: Log) -> list[Incoming]:
    async with log.reader(0, 1) as reader:
        return [incoming(stored) async for stored in reader.until_caught_up()]


@pytest.mark.parametrize(
    ("events", "seconds", "expected"),
    [(2_000, 0.5, 2_000), (2_000, 4.0, 500), (2_000, 60.0, 200), (500, 0.5, 1_000), (500, 0.001, 1_000)],
)
def test_a_batch_gets_as_many_events_as_fit_into_a_second(events: int, seconds: float, expected: int) -> None:
    assert next_batch(events, seconds) == expected


async def test_a_resting_runner_stops_at_once(log: Log, db: Connection, database_url: str, settled: Settled) -> None:
    runner = Runner(log, database_url, [MESSAGES], 0, rest_s=3_600.0)
    running = asyncio.create_task(runner.run())
    await log.append(turn("a lone event waits for nobody"))
    await settled("messages")
    runner.stop()
    async with asyncio.timeout(180):
        await running


async def test_a_runner_that_waits_for_events_stops_at_once_and_the_next_goes_on(
    log: Log, db: Connection, database_url: str, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "step", partial(engine.step, wait_s=3_600.0))
    for number in range(3):
        await log.append(turn(str(number)))
        runner = Runner(log, database_url, [MESSAGES], 0)
        running = asyncio.create_task(runner.run())
        await settled("messages")
        runner.stop()
        async with asyncio.timeout(180):
            await running
    assert await rows(db, CONTENTS) == [("0",), ("1",), ("2",)]


async def test_events_that_come_while_a_runner_rests_are_one_batch(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url, rest_s=2.0):
        await log.append(turn("0"))
        await settled()
        for number in range(1, 8):
            await log.append(turn(str(number)))
        await settled()
    assert await rows(db, CONTENTS) == [(str(number),) for number in range(8)]
    ((transactions,),) = await rows(db, "SELECT count(DISTINCT xmin::text) FROM messages")
    assert transactions == 2


async def test_projections_that_handle_nothing_of_a_batch_move_too(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    await log.append(event(ThreadRenamed(label="A new name")))
    await settled()
    stored_positions = await rows(db, "SELECT projection, position FROM projection_positions ORDER BY 1")
    assert stored_positions == [(name, 1) for name in sorted(BY_NAME)]


@pytest.mark.parametrize("count", [1, TOGETHER_UP_TO + 1])
async def test_a_batch_at_a_moved_position_leaves_nothing_behind(log: Log, db: Connection, count: int) -> None:
    await log.append_many([turn(str(number)) for number in range(count)])
    at, batch = await positions.load(db, [MESSAGES], LIVE, 0), await read(log)
    await positions.move(db, at, 5)
    with pytest.raises(PositionMoved):
        await apply_batch(db, [MESSAGES], batch, at, through=count, as_read=True)
    assert db.info.transaction_status == TransactionStatus.IDLE
    assert await rows(db, "SELECT position FROM projection_positions") == [(5,)]
    assert await rows(db, "SELECT seq FROM event_ids") == []
    assert await rows(db, CONTENTS) == []


async def test_an_error_of_the_environment_leaves_nothing_behind(log: Log, db: Connection) -> None:
    def project(batch: Sequence[Recorded]) -> list[Change]:
        raise OSError("the disk is away")

    broken = Projection("thread_activity", 1, (), frozenset({"turn_recorded"}), project)
    await log.append(turn("once"))
    both, batch = [MESSAGES, broken], await read(log)
    at = await positions.load(db, both, LIVE, 0)
    with pytest.raises(OSError, match="the disk is away"):
        await apply_batch(db, both, batch, at, through=1, as_read=True)
    assert db.info.transaction_status == TransactionStatus.IDLE
    assert await rows(db, CONTENTS) == await rows(db, "SELECT seq FROM event_ids") == []
    assert (await apply_batch(db, [MESSAGES], batch, await positions.load(db, [MESSAGES], LIVE, 0), 1)).lowest == 1
    assert await rows(db, CONTENTS) == [("once",)]


@pytest.mark.parametrize("others", [0, TOGETHER_UP_TO])
async def test_an_event_that_is_twice_in_a_batch_is_one_event(log: Log, db: Connection, others: int) -> None:
    twice = turn("twice")
    await log.append(twice)
    await log.append_many([turn("other", thread="u") for _ in range(others)])
    # After the deduplication window a producer's retry is stored again.
    await log.nc.jetstream().publish("turnlog.default.t.turn_recorded", encode(twice))
    at, batch = await positions.load(db, [MESSAGES], LIVE, 0), await read(log)
    assert len(batch) == others + 2
    await apply_batch(db, [MESSAGES], batch, at, through=batch[-1].seq, as_read=True)
    assert await rows(db, "SELECT seq FROM messages WHERE thread_id = 't'") == [(1,)]
    assert await rows(db, "SELECT seq FROM event_ids WHERE event_id = %s", twice.id) == [(1,)]


async def test_a_batch_that_waited_for_a_retry_sees_the_released_events(
    log: Log, db: Connection, database_url: str
) -> None:
    await log.append(turn("behind no more"))
    at, batch = await positions.load(db, [MESSAGES], LIVE, 0), await read(log)
    await db.execute(
        "INSERT INTO dead_letters (projection, build, seq, partition, tenant, thread_token, event_type, reason, "
        "error, status) VALUES ('messages', 'live', 0, 0, 'default', 't', 'turn_recorded', 'poison', '', 'parked')"
    )

    async def waits() -> bool:
        query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return len(await rows(other, query)) == 1

    async with await connect(database_url) as other:
        async with other.transaction():
            await other.execute("SELECT FROM projection_positions FOR UPDATE")
            await other.execute("DELETE FROM dead_letters")
            applying = asyncio.create_task(apply_batch(db, [MESSAGES], batch, at, through=1, as_read=True))
            await eventually(waits)
        await applying
    assert await rows(db, CONTENTS) == [("behind no more",)]
    assert await parked(db, "messages") == []
