"""Which memories the compaction job merged, and taking that back (M6)."""

from dataclasses import dataclass
from uuid import UUID

from turnlog.agent.memory.deciding.writing import MemoryWriter, Place
from turnlog.agent.memory.upkeep.compaction import undo_compaction as undo
from turnlog.agent.runtime import Runtime
from turnlog.projectors.models.memories.vectors import Compaction, compactions


@dataclass(frozen=True, slots=True)
class UndoneCompaction:
    """memories: ids of those that hold again; () when it was taken back before."""

    compaction: UUID
    memories: tuple[UUID, ...]


async def list_compactions(runtime: Runtime, tenant: str, user: str) -> list[Compaction]:
    """The newest first. Raises InvalidToken."""
    thread = Place(tenant, user).thread
    await runtime.settle(names=("memories",))
    async with runtime.pool.connection() as conn:
        return await compactions(conn, tenant, thread)


async def undo_compaction(runtime: Runtime, tenant: str, user: str, compaction: UUID) -> UndoneCompaction:
    """Its members hold again as before, and the job does not merge them again. Raises InvalidToken, NotFound."""
    reopened = await undo(MemoryWriter(runtime.log, runtime.pool), Place(tenant, user), compaction)
    return UndoneCompaction(compaction, tuple(reopened))
