"""The asking user's long-term memories: for the request, for the tool, and the event that they were read."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from turnlog.agent.memory.deciding.policy import Policy
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.protocol import Embedder
from turnlog.agent.recall.memories import MemoriesFound, MemoryRecall
from turnlog.agent.recall.memory_block import MemoryBlock, recalled_block
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.memories.lookup import is_memory_off
from turnlog.projectors.models.memories.search import MemoryScope

logger = logging.getLogger("turnlog.agent")
EMBEDDING_PATIENCE_S = 1.0  # the user waits for the answer: after that time the search uses words alone


class AnswerMemories:
    """embedder None: search by words, entities and dates."""

    def __init__(self, runtime: Runtime, embedder: Embedder | None) -> None:
        self._runtime = runtime
        policy, zone = Policy.of(runtime.settings), runtime.settings.zone
        self._recall = MemoryRecall(embedder, policy, patience_s=EMBEDDING_PATIENCE_S, zone=zone)
        self._memories = Memories(runtime.log, runtime.pool)

    def block_of(self, request: Event, question: str, model: str, message_count: int) -> "asyncio.Task[MemoryBlock]":
        """The block for a request, searched on a connection of its own while the thread is read."""
        block = self._block(request, question, model, message_count)
        return asyncio.create_task(block, name=f"memories-{request.id}")

    async def found(self, tenant: str, user: str | None, query: str, k: int, now: datetime) -> MemoriesFound:
        """Returns nothing without a user, or where MEMORY_LONG_TERM or the user's preference enable_memory is off."""
        if not user or not self._runtime.settings.long_term:
            return MemoriesFound()
        async with self._runtime.pool.connection() as conn:
            thread = memory_thread(user)
            if await is_memory_off(conn, tenant, thread):
                return MemoriesFound()
            return await self._recall.search(conn, MemoryScope(tenant, thread, now), query, k)

    async def accessed(self, request: Event, ids: Iterable[UUID]) -> None:
        """Called once after each answer; its failure does not fail the answer."""
        read = list(ids)
        if not read or not request.user:
            return
        try:
            await self._memories.accessed(request.tenant, request.user, read, cause=request.id)
        except TurnlogError as error:
            logger.warning("that %d memories were read is not noted: %s", len(read), error)

    async def _block(self, request: Event, question: str, model: str, message_count: int) -> MemoryBlock:
        settings = self._runtime.settings
        if not request.user or not settings.long_term:
            return MemoryBlock()
        async with self._runtime.pool.connection() as conn:
            asking = (request.tenant, request.user, question, request.time, model)
            return await recalled_block(conn, self._recall, settings, *asking, message_count=message_count)
