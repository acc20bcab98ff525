"""The caches job deletes vectors and model answers that no row needs after a day, including those of deleted
threads."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from helpers.memory_events import MODEL, cached_vectors, embedded, recorded
from helpers.sample_events import event, turn
from helpers.servers import rows

from turnlog.agent.operations.jobs.caches import clean_caches
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import ThreadDeleted
from turnlog.events.progress import no_progress
from turnlog.projectors.engine.lag import NotProjectedInTime
from turnlog.projectors.engine.writer import Connection

RUN, WALK, TEA, ITEM, PROBE, NO_ROW = TEXTS = (
    *("[8 May 2023] user: I run", "[8 May 2023] user: I walk", "likes tea", "of an item", "turnlog", "no row"),
)
REFUSED = '{"text": "", "refused": "declined"}'


@pytest.fixture
async def runtime(nats_url: str, database_url: str) -> AsyncIterator[Runtime]:
    async with opened(Settings(nats_url=nats_url, database_url=database_url)) as made:
        yield made


async def clean(runtime: Runtime, hours: int = 25, patience_s: float = 180.0) -> dict[str, int]:
    return (await clean_caches(runtime, datetime.now(UTC) + timedelta(hours=hours), no_progress, patience_s)).counts


async def vectors(conn: Connection) -> set[tuple[str, str]]:
    names = {sha256(text.encode()).digest(): text for text in TEXTS}
    cached = await rows(conn, "SELECT model, text_hash FROM embedding_cache")
    return {(model, names[bytes(text_hash)]) for model, text_hash in cached}


async def test_vectors_that_no_row_needs_are_deleted_after_a_day(runtime: Runtime, db: Connection) -> None:
    await cached_vectors(db, TEXTS)
    await db.execute(
        "INSERT INTO embedding_cache (model, text_hash, embedding) SELECT 'before', text_hash, embedding "
        "FROM embedding_cache WHERE text_hash = %s",
        (sha256(TEA.encode()).digest(),),
    )
    await db.execute(
        "INSERT INTO store_vectors (tenant, thread_id, key, field, model, embedding) "
        "SELECT 'default', 'store/ann', 'k', '$', model, embedding FROM embedding_cache WHERE text_hash = %s",
        (sha256(ITEM.encode()).digest(),),
    )
    said = [turn("I run"), turn("I walk", thread="u"), event(ThreadDeleted(), "u"), recorded(TEA), embedded(TEA)]
    await runtime.log.append_many(said)
    async with projecting(runtime):
        assert (await clean(runtime, hours=0))["vectors"] == 0
        assert (await clean(runtime))["vectors"] == 3
    assert await vectors(db) == {(MODEL, text) for text in (RUN, TEA, ITEM, PROBE)}


async def test_model_answers_are_deleted_after_a_day_and_those_of_a_deleted_thread_at_once(
    runtime: Runtime, db: Connection
) -> None:
    for name, thread, response in (
        ("there", "t", '{"text": "x"}'),
        ("refused", "t", REFUSED),
        ("deleted", "u", '{"text": "x"}'),
        ("deleted, refused", "u", REFUSED),
        ("of a memory", "memories/ann", REFUSED),
        ("of an older turnlog", None, r'{"text": "\u0000"}'),
    ):
        await db.execute(
            "INSERT INTO model_cache (request_hash, response, tenant, thread_id) VALUES (%s, %s, 'default', %s)",
            (name.encode(), response, thread),
        )

    async def answers() -> set[bytes]:
        return {bytes(name) for (name,) in await rows(db, "SELECT request_hash FROM model_cache")}

    said = [turn("I run"), turn("I walk", thread="u"), event(ThreadDeleted(), "u"), recorded(TEA)]
    await runtime.log.append_many(said)
    async with projecting(runtime):
        assert (await clean(runtime, hours=0))["answers"] == 2
        assert await answers() == {b"there", b"refused", b"of a memory", b"of an older turnlog"}
        assert (await clean(runtime))["answers"] == 2
        assert await answers() == {b"refused", b"of a memory"}


async def test_nothing_is_deleted_while_pending_rows_may_need_it(runtime: Runtime, db: Connection) -> None:
    await cached_vectors(db, [RUN])
    await runtime.log.append(turn("I run"))
    with pytest.raises(NotProjectedInTime):
        await clean(runtime, patience_s=0.1)
    assert await vectors(db) == {(MODEL, RUN)}
