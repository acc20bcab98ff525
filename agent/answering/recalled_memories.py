"""The asking user's long-term memories, for the tool, and the event that they were read."""

import logging
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.protocol import asker_of
from turnlog.agent.recall.memory_search import MemoriesFound, memory_recall_of
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.events.errors import TurnlogError
from turnlog.events.local_time import local
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.memories.lookup import is_memory_off, zone_of
from turnlog.projectors.models.memories.search import MemoryScope

logger = logging.getLogger("turnlog.agent")


class AnswerMemories:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._memories = runtime, Memories(runtime.log, runtime.pool)

    async def found(self, tenant: str, user: str | None, query: str, k: int, now: datetime) -> MemoriesFound:
        """Returns nothing without a user, or where MEMORY_LONG_TERM or the user's preference enable_memory is off."""
        if not user or not self._runtime.settings.long_term:
            return MemoriesFound()
        async with self._runtime.pool.connection() as conn:
            thread = memory_thread(user)
            if await is_memory_off(conn, tenant, thread):
                return MemoriesFound()
            now = local(now, await zone_of(conn, tenant, user, self._runtime.settings.zone))
            recall = memory_recall_of(self._runtime, asker_of(tenant, user))
            return await recall.search(conn, MemoryScope(tenant, thread, now), query, k)

    async def accessed(self, request: Event, ids: Iterable[UUID]) -> None:
        """Called once after each answer; its failure does not fail the answer."""
        read = list(ids)
        if not read or not request.user:
            return
        try:
            await self._memories.accessed(request.tenant, request.user, read, cause=request.id)
        except TurnlogError as error:
            logger.warning("that %d memories were read is not noted: %s", len(read), error)
