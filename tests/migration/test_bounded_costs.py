"""The migration that bounds costs leaves the rows that a rebuild would make."""

from collections.abc import Sequence
from importlib import import_module

from helpers.projection_spec import stored
from helpers.sample_events import turn
from helpers.servers import rows

from turnlog.events.contracts import Event
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import apply_batch
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.positions import LIVE
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.projection import VECTORS

MIGRATION = import_module("turnlog.migrations.versions.0018_bounded_costs")
QUESTIONS = "SELECT * FROM last_questions ORDER BY thread_id"
CHUNKS = "SELECT id, seqs, event_ids, source_ids FROM memory_vectors ORDER BY id"
LONGER = """
UPDATE memory_vectors SET seqs = seqs || 9999::bigint, event_ids = event_ids || gen_random_uuid(),
  source_ids = source_ids || NULL::text WHERE cardinality(seqs) = 100 AND role = 'assistant'"""


async def test_the_migration_adds_the_last_question_of_each_thread(db: Connection) -> None:
    said = [turn("ok" if n % 3 else f"words {n}", "user" if n % 2 else "assistant", f"t{n % 4}") for n in range(40)]
    await projected(db, said)
    made = await rows(db, QUESTIONS)
    assert len(made) == 2
    await db.execute("TRUNCATE last_questions")
    await db.execute(MIGRATION.LAST_QUESTIONS)
    assert await rows(db, QUESTIONS) == made


async def test_the_migration_limits_chunks_to_their_first_turns(db: Connection) -> None:
    await projected(db, [turn("ok", "user" if n % 2 else "assistant") for n in range(220)])
    made = await rows(db, CHUNKS)
    await db.execute(LONGER)
    assert await rows(db, CHUNKS) != made
    await db.execute(MIGRATION.FIRST_TURNS)
    assert await rows(db, CHUNKS) == made


async def projected(db: Connection, said: Sequence[Event]) -> None:
    batch = [incoming(stored(event, seq)) for seq, event in enumerate(said, 1)]
    await apply_batch(db, [VECTORS], batch, await positions.load(db, [VECTORS], LIVE, 0), through=len(said))
