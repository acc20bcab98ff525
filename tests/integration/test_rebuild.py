"""Read models are rebuilt and verified on real servers while live traffic continues."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from conftest import Settled
from helpers import nightly
from helpers.sample_events import event, turn
from helpers.servers import parked, rows, running_projector, unlike_a_rebuild

from turnlog.events.contracts import ChunksEmbedded, Event, Recorded, ThreadDeleted, TurnRecorded
from turnlog.events.log import Log
from turnlog.events.progress import no_progress
from turnlog.events.stream import StreamOptions
from turnlog.projectors.engine.changes import Change
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.projection import VECTORS
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.models.operations.api_keys import ACCESS_KEYS
from turnlog.projectors.models.registry import BY_NAME, PROJECTIONS
from turnlog.projectors.rebuild.build import RebuildRunning, RebuildStopped, building
from turnlog.projectors.rebuild.rebuild import rebuild, rebuild_several
from turnlog.projectors.rebuild.replay import drop, retry
from turnlog.projectors.rebuild.verify import Difference, verify, verify_several

pytestmark = pytest.mark.slow

POISON = turn("poison", tokens_in=2**31)
SHADOWS = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'turnlog\\_%'"


def conversation(n: int, threads: int = 5) -> list[Event]:
    roles = ("user", "assistant")
    return [turn(f"{i} about essays", roles[i // threads % 2], f"t{i % threads}") for i in range(n)]


def broken_at(text: str) -> Projection:
    """Returns the projection of messages with a bug that one turn triggers."""

    def project(batch: Sequence[Recorded]) -> list[Change]:
        if any(isinstance(r.event.data, TurnRecorded) and r.event.data.content == text for r in batch):
            raise KeyError("the bug")
        return MESSAGES.project(batch)

    return replace(MESSAGES, project=project)


async def everything(db: Connection, projection: Projection) -> list[object]:
    return [await rows(db, f"SELECT t::text FROM {table.name} t ORDER BY 1") for table in projection.tables]


@pytest.fixture
async def projected(log: Log, db: Connection, running_projectors: Runner, settled: Settled) -> Runner:
    """Projects a log of 60 turns in five threads, one of which was deleted."""
    await log.append_many([*conversation(60), event(ThreadDeleted(), "t3")])
    await settled()
    return running_projectors


@pytest.mark.parametrize("name", nightly.part(list(BY_NAME)))
async def test_a_rebuild_gives_the_same_rows(
    log: Log, db: Connection, database_url: str, projected: Runner, name: str
) -> None:
    before = await everything(db, BY_NAME[name])
    done = await rebuild(log, database_url, BY_NAME[name])
    assert await everything(db, BY_NAME[name]) == before
    assert (done.projection, done.events) == (name, 61)
    assert await rows(db, SHADOWS) == []
    assert (await verify(log, database_url, BY_NAME[name])).clean


async def test_a_rebuild_gives_the_same_columns_keys_and_indexes(
    log: Log, db: Connection, database_url: str, projected: Runner
) -> None:
    query = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'turnlog' ORDER BY indexdef"
    columns = "SELECT table_name, column_name, data_type, column_default, is_nullable FROM information_schema.columns "
    columns += "WHERE table_schema = 'turnlog' ORDER BY table_name, ordinal_position"
    before = await rows(db, query), await rows(db, columns)
    for projection in PROJECTIONS:
        await rebuild(log, database_url, projection)
    assert (await rows(db, query), await rows(db, columns)) == before


async def test_the_live_projection_continues_where_a_rebuild_ended(
    log: Log, db: Connection, database_url: str, projected: Runner, settled: Settled
) -> None:
    for projection in PROJECTIONS:
        await rebuild(log, database_url, projection)
    await log.append_many(conversation(20))
    await settled()
    assert await unlike_a_rebuild(log, database_url) == {}


async def test_readers_never_miss_rows_during_a_rebuild_with_live_writers(
    log: Log, db: Connection, database_url: str, projected: Runner, settled: Settled
) -> None:
    over = asyncio.Event()

    async def write() -> None:
        while not over.is_set():
            await log.append_many(conversation(10))

    async def watch() -> list[int]:
        counts = []
        async with await connect(database_url) as conn:
            while not over.is_set():
                counts += [n for (n,) in await rows(conn, "SELECT count(*)::int FROM messages WHERE thread_id <> 't3'")]
        return counts

    writer, watcher = asyncio.create_task(write()), asyncio.create_task(watch())
    for _ in range(3):
        await rebuild(log, database_url, MESSAGES)
    over.set()
    await writer
    counts = await watcher
    assert counts[0] >= 48
    assert counts == sorted(counts)
    await settled()
    assert (await verify(log, database_url, MESSAGES)).clean


_LOCKED_OUT = "SELECT count(*) > 0 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"


async def test_a_reader_that_locks_tables_in_another_order_does_not_deadlock(
    log: Log, db: Connection, database_url: str, projected: Runner
) -> None:
    first, last = THREAD_ACTIVITY, ACCESS_KEYS
    async with await connect(database_url) as reader:
        async with reader.transaction():
            await reader.execute("SELECT FROM api_keys")
            rebuilding = asyncio.create_task(rebuild_several(log, database_url, [first, last]))
            # the rebuild has locked the first table and waits for the last
            while await rows(db, _LOCKED_OUT) == [(False,)]:
                await asyncio.sleep(0.01)
            assert await rows(reader, "SELECT count(*) FROM thread_activity") == [(4,)]
        assert [rebuilt.projection for rebuilt in await rebuilding] == [first.name, last.name]
    assert await rows(db, SHADOWS) == []


async def test_all_are_rebuilt_and_verified_in_one_pass_over_the_log(
    log: Log, db: Connection, database_url: str, projected: Runner
) -> None:
    before = [await everything(db, projection) for projection in PROJECTIONS]
    assert sorted(done.projection for done in await rebuild_several(log, database_url, PROJECTIONS)) == sorted(BY_NAME)
    assert [await everything(db, projection) for projection in PROJECTIONS] == before
    checked = await verify_several(log, database_url, PROJECTIONS)
    assert sorted(result.projection for result in checked) == sorted(BY_NAME)
    assert all(result.clean for result in checked)
    await db.execute("UPDATE usage SET calls = 0; DELETE FROM messages WHERE seq = 5")
    unclean = [result.projection for result in await verify_several(log, database_url, PROJECTIONS) if not result.clean]
    assert unclean == ["messages"]


async def test_vectors_and_their_neighbour_index_come_back_without_a_model(
    log: Log, db: Connection, database_url: str, projected: Runner, settled: Settled
) -> None:
    await db.execute(
        "INSERT INTO embedding_cache (model, text_hash, embedding) SELECT 'small', "
        "sha256(convert_to(index_text, 'UTF8')), ('[1,2,' || seq || ']')::halfvec FROM memory_vectors"
    )
    ids = [vector_id for (vector_id,) in await rows(db, "SELECT id FROM memory_vectors WHERE thread_id = 't1'")]
    await log.append(event(ChunksEmbedded(model="small", dimensions=3, chunk_ids=tuple(ids)), "t1"))
    await settled()
    before = await everything(db, VECTORS)
    await rebuild(log, database_url, VECTORS)
    assert await everything(db, VECTORS) == before
    embedded = "SELECT count(*)::int FROM memory_vectors WHERE embedding IS NOT NULL AND thread_id = 't1'"
    assert await rows(db, embedded) == [(len(ids),)]
    assert len(await rows(db, "SELECT 1 FROM pg_indexes WHERE indexdef LIKE '%hnsw%' AND schemaname = 'turnlog'")) == 1


async def test_a_rebuild_ahead_of_a_slow_live_projection_takes_it_along(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    await log.append_many(conversation(30))
    await rebuild(log, database_url, MESSAGES)
    assert await rows(db, "SELECT position FROM projection_positions WHERE projection = 'messages'") == [(30,)]
    async with running_projector(log, database_url):
        await log.append(turn("live"))
        await settled()
    assert await rows(db, "SELECT count(*)::int FROM messages") == [(31,)]


async def test_a_rebuild_of_an_empty_log_is_an_empty_table(log: Log, db: Connection, database_url: str) -> None:
    for projection in PROJECTIONS:
        assert (await rebuild(log, database_url, projection)).events == 0
    assert await unlike_a_rebuild(log, database_url) == {}


async def test_progress_counts_to_the_end(log: Log, database_url: str, projected: Runner) -> None:
    seen: list[tuple[float, float | None]] = []
    [done] = await rebuild_several(log, database_url, [MESSAGES], lambda done, total: seen.append((done, total)))
    assert seen[-1] == (61, 61)
    assert done.events_per_s > 0
    for command in (rebuild, verify):
        seen.clear()
        await command(log, database_url, MESSAGES, lambda done, total: seen.append((done, total)))
        assert seen[-1] == (61, 61)


@pytest.mark.nightly
async def test_every_partition_is_rebuilt(nats_url: str, db: Connection, database_url: str) -> None:
    log = await Log.connect(nats_url, StreamOptions(partitions=3))
    try:
        await log.append_many(conversation(60, threads=20))
        async with (
            running_projector(log, database_url, partition=0),
            running_projector(log, database_url, partition=1),
            running_projector(log, database_url, partition=2),
        ):
            for partition in range(3):
                await wait_for(db, tuple(BY_NAME), partition, await log.partition_head(partition), timeout_s=180.0)
            for projection in PROJECTIONS:
                await rebuild(log, database_url, projection)
            assert await unlike_a_rebuild(log, database_url) == {}
        assert await rows(db, "SELECT count(*)::int FROM messages") == [(60,)]
    finally:
        await log.close()


async def test_parked_events_stay_parked_after_a_rebuild(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn("before"), POISON, turn("behind"), turn("free", thread="u")])
    await settled()
    before = await parked(db, "messages")
    assert before == [(2, "poison", "parked"), (3, "behind", "parked")]
    await rebuild(log, database_url, MESSAGES)
    assert await parked(db, "messages") == before
    await log.append(turn("behind too"))
    await settled()
    assert [seq for seq, _, _ in await parked(db, "messages")] == [2, 3, 5]
    checked = await verify(log, database_url, MESSAGES)
    assert (checked.clean, checked.parked) == (True, 3)


async def test_a_rebuild_with_a_fixed_projector_applies_parked_events(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url, [broken_at("1 about essays")]):
        await log.append_many(conversation(20))
        await settled("messages")
    assert [seq for seq, _, _ in await parked(db, "messages")] == [2, 7, 12, 17]
    await rebuild(log, database_url, MESSAGES)
    assert await parked(db, "messages") == []
    assert await rows(db, "SELECT count(*)::int FROM messages") == [(20,)]


async def test_dropped_events_stay_dropped_after_a_rebuild(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn("before"), POISON, turn("after")])
    await settled()
    await drop(log, database_url, MESSAGES, 2)
    await rebuild(log, database_url, MESSAGES)
    assert await rows(db, "SELECT content FROM messages ORDER BY seq") == [("before",), ("after",)]
    assert await parked(db, "messages") == [(2, "poison", "dropped")]
    assert (await verify(log, database_url, MESSAGES)).clean


async def test_a_rebuild_stops_at_new_poison_and_leaves_everything_as_it_was(
    log: Log, db: Connection, database_url: str, projected: Runner
) -> None:
    before = await everything(db, MESSAGES)
    with pytest.raises(RebuildStopped, match=r"event at sequence 8: KeyError.*live tables are unchanged"):
        await rebuild(log, database_url, broken_at("7 about essays"))
    assert await everything(db, MESSAGES) == before
    assert await rows(db, SHADOWS) == []
    assert await rows(db, "SELECT count(*)::int FROM dead_letters") == [(0,)]
    assert await rows(db, "SELECT DISTINCT build FROM projection_positions") == [("live",)]


async def test_a_new_version_is_rebuilt_before_it_runs(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url):
        await log.append_many(conversation(10))
        await settled()
    newer = replace(MESSAGES, version=2)
    await rebuild(log, database_url, newer)
    async with running_projector(log, database_url, [newer]) as runner:
        await log.append(turn("after"))
        await settled("messages")
        assert runner.last_error is None
    assert await rows(db, "SELECT count(*)::int FROM messages") == [(11,)]


async def test_only_one_build_of_a_projection_goes_on_at_a_time(log: Log, database_url: str, projected: Runner) -> None:
    async with building(database_url, [MESSAGES], "verify", no_progress):
        with pytest.raises(RebuildRunning, match="wait for it"):
            await rebuild(log, database_url, MESSAGES)
        with pytest.raises(RebuildRunning):
            await verify(log, database_url, MESSAGES)
        await rebuild(log, database_url, VECTORS)


async def test_a_killed_build_does_not_block_the_next(
    log: Log, db: Connection, database_url: str, projected: Runner
) -> None:
    with pytest.raises(Exception, match="terminat"):
        async with building(database_url, [MESSAGES], "rebuild", no_progress) as build:
            await build.fill(log, 0, 30)
            await db.execute("SELECT pg_terminate_backend(%s)", (build.conn.info.backend_pid,))
            await build.fill(log, 0, 60)
    assert await rows(db, SHADOWS) == [("turnlog_rebuild_messages",)]
    await rebuild(log, database_url, MESSAGES)
    assert await rows(db, SHADOWS) == []
    assert (await verify(log, database_url, MESSAGES)).clean


TAMPERINGS = {
    "differs": ("UPDATE messages SET content = '\"forged\"' WHERE seq = 5", "5"),
    "only rebuilt": ("DELETE FROM messages WHERE seq = 6", "6"),
    "only live": (
        "INSERT INTO messages (tenant, thread_id, seq, event_id, role, content, time, origin) "
        "VALUES ('default', 't0', 999, gen_random_uuid(), 'user', '\"extra\"', now(), 'person')",
        "999",
    ),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
async def test_verify_names_the_row_that_differs_from_the_log(
    log: Log, db: Connection, database_url: str, projected: Runner, kind: str
) -> None:
    statement, seq = TAMPERINGS[kind]
    clean = await verify(log, database_url, MESSAGES)
    await db.execute(statement.encode())
    result = await verify(log, database_url, MESSAGES)
    (difference,) = result.differences
    assert (difference.table, difference.kind) == ("messages", kind)
    assert difference.key.endswith(f" / {seq}")
    assert clean.clean
    assert not result.clean
    assert clean.checksum != result.checksum
    await rebuild(log, database_url, MESSAGES)
    assert (await verify(log, database_url, MESSAGES)).checksum == clean.checksum


async def test_verify_notices_a_parked_event_that_was_forgotten(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([POISON, turn("behind")])
    await settled()
    assert (await verify(log, database_url, MESSAGES)).clean
    await db.execute("DELETE FROM dead_letters WHERE seq = 2")
    differences = (await verify(log, database_url, MESSAGES)).differences
    assert differences == (Difference("dead_letters", "2", "parked on one side only"),)


async def test_verify_is_clean_while_events_keep_coming(
    log: Log, database_url: str, projected: Runner, settled: Settled
) -> None:
    async def write() -> None:
        for _ in range(20):
            await log.append_many(conversation(20))

    writer = asyncio.create_task(write())
    checked = [await verify(log, database_url, BY_NAME[name]) for name in ("messages", "thread_activity", "vectors")]
    await writer
    assert all(result.clean for result in checked)


async def test_retry_of_a_thread_with_nothing_parked_does_nothing(
    log: Log, database_url: str, projected: Runner
) -> None:
    done = await retry(log, database_url, MESSAGES, ("default", "t1"))
    assert (done.applied, done.parked) == ((), ())
