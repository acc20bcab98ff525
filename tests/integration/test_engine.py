"""The engine on real servers: rows and position move together, and two runners never collide."""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from conftest import Settled
from helpers.sample_events import turn
from helpers.servers import eventually, rows, running_projector
from nats.js.errors import NotFoundError

from turnlog.consumers.runtime import connection_pool
from turnlog.events.codec import encode
from turnlog.events.contracts import Recorded
from turnlog.events.errors import DatabaseUnavailable
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import LARGE_BATCH_BYTES, apply_batch
from turnlog.projectors.engine.changes import Change
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.engine import Runner, step
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.lag import NotProjectedInTime, lag, wait_for
from turnlog.projectors.engine.positions import LIVE, PositionMoved
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.checkpoints.projection import CHECKPOINTS
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.registry import BY_NAME

CONTENTS = "SELECT thread_id, content FROM messages ORDER BY seq"


async def test_appended_events_are_visible_in_every_read_model(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn("When?"), turn("On 8 May.", "assistant")])
    await settled()
    assert await rows(db, CONTENTS) == [("t", "When?"), ("t", "On 8 May.")]
    assert await rows(db, "SELECT message_count FROM thread_activity") == [(2,)]
    assert await rows(db, "SELECT count(*) FROM memory_vectors") == [(2,)]
    assert await rows(db, "SELECT count(*) FROM memory_episodes") == [(1,)]
    assert await rows(db, "SELECT DISTINCT position FROM projection_positions") == [(2,)]


async def test_an_event_repeated_after_the_deduplication_window_is_applied_once(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    event = turn("once")
    body = encode(event)
    await log.append(event)
    await settled()
    for _ in range(2):
        await log.nc.jetstream().publish("turnlog.default.t.turn_recorded", body)
    await log.append(turn("next"))
    await settled()
    assert await log.head() == 4
    assert await rows(db, CONTENTS) == [("t", "once"), ("t", "next")]
    assert await rows(db, "SELECT message_count FROM thread_activity") == [(2,)]
    assert await rows(db, "SELECT seqs FROM memory_vectors ORDER BY seq") == [([1],), ([4],)]


async def test_a_nul_in_a_text_and_an_orphaned_tool_result_are_ordinary_turns(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn("a\0b"), turn("result", "tool", tool_call_id="nobody-called")])
    await settled()
    assert await rows(db, CONTENTS) == [("t", "a\ufffdb"), ("t", "result")]
    assert await rows(db, "SELECT count(*) FROM dead_letters") == [(0,)]


async def test_odd_thread_ids_reach_the_read_models_as_they_are(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    threads = ["a.b", "*", ">", "a b", "线", "🎓", "~YQ", "x" * 512, "turnlog.default.t.turn_recorded", "'; --", "%s{}"]
    await log.append_many([turn(thread=thread) for thread in threads])
    await settled()
    assert [thread for thread, _ in await rows(db, CONTENTS)] == threads


async def test_a_batch_is_discarded_if_somebody_else_moved_the_position(log: Log, db: Connection) -> None:
    await log.append_many([turn("one"), turn("two")])
    at = await positions.load(db, [MESSAGES], LIVE, 0)
    async with log.reader(0, 1) as reader:
        batch = [incoming(stored) async for stored in reader.until_caught_up()]
    assert (await apply_batch(db, [MESSAGES], batch, at, 2)).lowest == 2
    with pytest.raises(PositionMoved):
        await apply_batch(db, [MESSAGES], batch, at, 2)
    assert len(await rows(db, CONTENTS)) == 2


async def test_an_idle_reader_notices_that_its_position_was_moved(log: Log, db: Connection) -> None:
    at = await positions.load(db, [MESSAGES], LIVE, 0)
    await positions.move(db, at, 5)
    async with log.reader(0, 1) as reader:
        with pytest.raises(PositionMoved):
            await step(db, reader, [MESSAGES], at, wait_s=0.01)


async def test_a_projection_that_is_ahead_is_not_given_its_events_again(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url, [MESSAGES]):
        await log.append_many([turn(str(i)) for i in range(20)])
        await settled("messages")
    async with running_projector(log, database_url):
        await log.append(turn("20"))
        await settled()
    assert len(await rows(db, CONTENTS)) == 21
    assert await rows(db, "SELECT message_count FROM thread_activity") == [(21,)]


async def test_of_two_runners_one_works_and_the_other_takes_over_when_it_dies(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url), running_projector(log, database_url):
        for round_ in range(3):
            await log.append_many([turn(f"{round_}-{i}", thread=f"t{i % 3}") for i in range(30)])
            await settled()
            holders = await rows(db, "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory'")
            assert len(holders) == 1
            await db.execute("SELECT pg_terminate_backend(%s)", holders[0])
    assert len(await rows(db, CONTENTS)) == 90
    assert await rows(db, "SELECT sum(message_count)::int FROM thread_activity") == [(90,)]


async def test_a_runner_outlives_lost_connections_and_a_lost_consumer(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    for number in range(3):
        await log.append(turn(str(number)))
        await settled()
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database()"
        )
        for consumer in await log.nc.jetstream().consumers_info(STREAM):
            with contextlib.suppress(NotFoundError):  # the runner may have just deleted the consumer
                await log.nc.jetstream().delete_consumer(STREAM, consumer.name)
    await log.append(turn("3"))
    await settled()
    assert [text for _, text in await rows(db, CONTENTS)] == ["0", "1", "2", "3"]


async def test_lag_counts_pending_and_parked_events(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url, [MESSAGES]):
        await log.append_many([turn(), turn("poison", tokens_in=2**31), turn("behind")])
        await settled("messages")
    await log.append_many([turn(thread="u"), turn(thread="u")])
    (projection_lag,) = await lag(log, db)
    assert (
        projection_lag.projection,
        projection_lag.position,
        projection_lag.head,
        projection_lag.behind,
        projection_lag.parked,
    ) == ("messages", 3, 5, 2, 2)
    assert not projection_lag.stalled


async def test_parked_events_are_read_once_for_the_lag_of_all_projections(log: Log, db: Connection) -> None:
    await positions.load(db, [MESSAGES, CHECKPOINTS], LIVE, 0)
    await db.execute(
        "INSERT INTO dead_letters (projection, build, seq, partition, tenant, thread_token, event_type, reason, error, "
        "status) SELECT 'messages', 'live', n, 0, 'default', 't', 'turn_recorded', 'behind', '', 'parked' "
        "FROM generate_series(1, 1000) n"
    )
    await db.execute("ANALYZE dead_letters")
    async with db.transaction():
        assert {progress.projection: progress.parked for progress in await lag(log, db)} == {
            "messages": 1_000,
            "checkpoints": 0,
        }
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'dead_letters'"
        assert await rows(db, read) == [(1_000,)]


async def test_only_an_event_that_waits_too_long_is_a_stall(log: Log, db: Connection, database_url: str) -> None:
    await positions.load(db, [MESSAGES], LIVE, 0)
    await db.execute("UPDATE projection_positions SET updated_at = now() - interval '1 hour'")
    (idle,) = await lag(log, db)
    assert not idle.stalled
    await log.append(turn())
    (fresh,) = await lag(log, db)
    assert (fresh.behind, fresh.stalled) == (1, False)

    async def stalls() -> bool:
        return (await lag(log, db, stalled_after_s=0.2))[0].stalled

    await eventually(stalls)


async def test_waiting_for_a_projector_that_does_not_run_ends_with_advice(log: Log, db: Connection) -> None:
    await log.append(turn())
    with pytest.raises(NotProjectedInTime, match=r"messages did not reach sequence 1.*turnlog worker projectors"):
        await wait_for(db, ("messages",), 0, 1, timeout_s=0.05)


async def test_rows_of_another_code_version_ask_for_a_rebuild(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url):
        await log.append(turn())
        await settled()
    async with running_projector(log, database_url, [replace(MESSAGES, version=MESSAGES.version + 1)]) as newer:

        async def complained() -> bool:
            wanted = f"rows of version {MESSAGES.version} and code of version {MESSAGES.version + 1}"
            return wanted in (newer.last_error or "")

        await eventually(complained)


async def test_a_wrong_database_url_is_reported_in_plain_words() -> None:
    with pytest.raises(DatabaseUnavailable, match=r"(?s)cannot connect to Postgres.*DATABASE_URL"):
        await connect("postgresql://nobody@127.0.0.1:1/none")


async def test_a_session_has_utc_and_compiles_no_statement(database_url: str) -> None:
    async with await connect(database_url) as own, connection_pool(database_url) as pool, pool.connection() as pooled:
        for conn in (own, pooled):
            cursor = await conn.execute("SELECT setting, source FROM pg_settings WHERE name IN ('TimeZone', 'jit')")
            assert sorted(await cursor.fetchall()) == [("UTC", "client"), ("off", "client")]


async def test_large_events_are_projected_in_a_thread_outside_the_event_loop(
    log: Log, database_url: str, db: Connection, settled: Settled
) -> None:
    """Answers, other partitions and heartbeats continue meanwhile; small events are projected without a thread."""
    loop_thread, beside = threading.get_ident(), dict[int, bool]()

    def project(batch: Sequence[Recorded]) -> list[Change]:
        for recorded in batch:
            beside[recorded.seq] = threading.get_ident() != loop_thread
        return MESSAGES.project(batch)

    async with running_projector(log, database_url, [replace(MESSAGES, project=project)]):
        for text in ("small", "x" * LARGE_BATCH_BYTES):
            await log.append(turn(text))
            await settled("messages")
    assert beside == {1: False, 2: True}
    assert await rows(db, "SELECT length(content #>> '{}') FROM messages ORDER BY seq") == [(5,), (LARGE_BATCH_BYTES,)]


async def test_a_projection_of_another_version_waits_and_the_others_go_on(
    log: Log, database_url: str, db: Connection
) -> None:
    await db.execute(
        "INSERT INTO projection_positions (projection, build, partition, position, code_version) "
        "VALUES ('thread_activity', 'live', 0, 0, 99)"
    )
    await log.append(turn("hello"))
    async with running_projector(log, database_url, [MESSAGES, BY_NAME["thread_activity"]]) as runner:

        async def says_so() -> bool:
            return "thread_activity" in str(runner.last_error)

        await wait_for(db, ("messages",), 0, await log.head(), timeout_s=180.0)
        await eventually(says_so)
    assert await rows(db, "SELECT count(*) FROM messages") == [(1,)]
    assert await rows(db, "SELECT count(*) FROM thread_activity") == [(0,)]


async def test_rows_of_another_log_are_not_continued(log: Log, database_url: str, db: Connection) -> None:
    await db.execute(
        "INSERT INTO projection_positions (projection, build, partition, position, code_version) "
        "VALUES ('messages', 'live', 0, 77, %s)",
        (MESSAGES.version,),
    )
    await log.append(turn("hello"))
    async with running_projector(log, database_url, [MESSAGES]) as runner:

        async def says_so() -> bool:
            return "an older backup of the log was restored" in str(runner.last_error)

        await eventually(says_so)
    assert await rows(db, "SELECT count(*) FROM messages") == [(0,)]
