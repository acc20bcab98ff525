"""An erasure also clears cached vectors and the values in Postgres' statistics."""

from hashlib import sha256

from conftest import Settled
from helpers.memory_events import cached_vectors, embedded, recorded
from helpers.servers import rows

from turnlog.agent.privacy.erasure.event_scan import Person
from turnlog.agent.privacy.erasure.rows import clear_caches, vacuum_statistics
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection

ITEM = (
    "INSERT INTO store_vectors (tenant, thread_id, key, field, model, embedding) "
    "SELECT 'default', %s, 'k', '$', model, embedding FROM embedding_cache WHERE text_hash = %s"
)


def hashed(text: str) -> bytes:
    return sha256(text.encode()).digest()


async def test_the_vector_of_words_in_another_persons_item_is_kept(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    said = ["of ann alone", "ann's memory, bob's item", "bob's memory, ann's item"]
    alone, in_item, in_memory = said
    await cached_vectors(db, said)
    await log.append_many([*(recorded(text) for text in said[:2]), embedded(*said[:2])])
    await log.append_many([recorded(in_memory, user="bob"), embedded(in_memory, user="bob")])
    await settled("memories")
    await db.execute(ITEM, ("store/bob", hashed(in_item)))
    await db.execute(ITEM, ("store/ann", hashed(in_memory)))
    ann = Person("default", "ann", ("store/ann",))
    await clear_caches(db, ann, [memory_thread("ann"), "store/ann"], [])
    left = await rows(db, "SELECT text_hash FROM embedding_cache")
    assert (hashed(alone),) not in left
    assert (hashed(in_item),) in left


async def test_the_table_of_statistics_is_rewritten(db: Connection) -> None:
    at = "SELECT pg_relation_filenode('pg_statistic')"
    before = await rows(db, at)
    await vacuum_statistics(db)
    assert await rows(db, at) != before
