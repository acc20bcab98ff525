"""What would become of candidates if they were remembered now: decided as Memories does, and not stored."""

from collections.abc import Sequence

from turnlog.agent.memories.conflicts import decide
from turnlog.agent.memories.known import Known
from turnlog.agent.memories.outcomes import Outcome, outcome
from turnlog.agent.memories.rival_rows import rivals_of
from turnlog.agent.memories.writing import MemoryWriter, Place, Rows, utc_now
from turnlog.events.memory_contracts import Memory


async def preview(writer: MemoryWriter, place: Place, candidates: Sequence[Memory]) -> list[Outcome]:
    """An outcome for each candidate, the later ones as if the earlier ones were stored. Raises as writing does."""

    async def look(rows: Rows) -> list[Outcome]:
        known = Known(place, await rivals_of(rows, candidates), utc_now())
        told: list[Outcome] = []
        for one in candidates:
            decided = () if one.id in known.rows else decide(one, known.rivals(one))
            known.apply(decided)
            told.append(outcome(one, decided, known))
        return told

    return await writer.read(place, look)
