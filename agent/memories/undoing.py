"""Taking a compaction back: its members hold again as they did, and what it made ends (M6)."""

from uuid import UUID, uuid5

from turnlog.agent.memories.compaction import reopened
from turnlog.agent.memories.writing import Decided, MemoryWriter, Place, Rows
from turnlog.events.errors import NotFound
from turnlog.events.memory_contracts import CompactionUndone
from turnlog.projectors.memory_compacting import compactions
from turnlog.projectors.memory_lookup import memories_by_id


async def undo_compaction(writer: MemoryWriter, place: Place, event_id: UUID) -> list[UUID]:
    """The memories that hold again; [] when it was taken back before. The job does not make them one again.

    What changed for another reason since, such as a member that was forgotten, stays changed. Raises NotFound.
    """

    async def decide(rows: Rows) -> Decided[list[UUID]]:
        known = await compactions(rows.conn, place.tenant, place.thread, event_id)
        if not known:
            raise NotFound(f"user {place.user!r} has no compaction {event_id}; `turnlog compactions` lists them")
        [found] = known
        into = found.made or found.kept
        if found.undone or into is None:
            return Decided([], [])
        family = await memories_by_id(rows.conn, place.tenant, place.thread, [*found.members, into])
        ended = {id_: row.replaced_by for id_, row in family.items() if row.status != "forgotten"}
        intervals = reopened(found.members, ended, into)
        made = found.made if found.made in ended else None
        data = CompactionUndone(compaction_id=event_id, made=made, intervals=intervals)
        return Decided([(uuid5(event_id, "undone"), data)], [one.memory_id for one in intervals])

    return await writer.write(place, decide)
