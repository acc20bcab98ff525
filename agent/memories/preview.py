"""What would become of candidates if they were remembered now: decided as Memories does, and not stored."""

from collections.abc import Sequence
from datetime import UTC, datetime

from turnlog.agent.memories.conflicts import decide
from turnlog.agent.memories.known import Known
from turnlog.agent.memories.outcomes import Outcome, outcome
from turnlog.agent.memories.writing import MemoryWriter, Place, Rows
from turnlog.events.memory_contracts import Memory
from turnlog.projectors.memory_lookup import rivals
from turnlog.projectors.memory_text import content_key


async def preview(writer: MemoryWriter, place: Place, candidates: Sequence[Memory]) -> list[Outcome]:
    """An outcome for each candidate, the later ones as if the earlier ones were stored. Raises as writing does."""

    async def look(rows: Rows) -> list[Outcome]:
        keys = [one.dedupe_key for one in candidates if one.dedupe_key is not None]
        words = [content_key(one.kind, one.content) for one in candidates]
        held = await rivals(rows.conn, place.tenant, place.thread, keys, words, [one.id for one in candidates])
        known = Known(place, held, datetime.now(UTC))
        told: list[Outcome] = []
        for one in candidates:
            decided = () if one.id in known.rows else decide(one, known.rivals(one))
            known.apply(decided)
            told.append(outcome(one, decided, known))
        return told

    return await writer.read(place, look)
