"""The long-term memories of whoever asks: into the request, out for the tool, and on the log that they were read."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from turnlog.agent.memories.block import MemoryBlock
from turnlog.agent.memories.block_recall import recalled_block
from turnlog.agent.memories.policy import Policy
from turnlog.agent.memories.retrieval import MemoriesFound, MemoryRecall
from turnlog.agent.memories.service import Memories
from turnlog.agent.models.protocol import Embedder
from turnlog.agent.plain import content_text
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import AnswerRequested, Event
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import memory_thread
from turnlog.projectors.memory_search import MemoryScope
from turnlog.projectors.messages import message_by_event

logger = logging.getLogger("turnlog.consumers")
EMBEDDING_PATIENCE_S = 1.0  # somebody waits for the answer: after that the question's words must do


class AnswerMemories:
    """embedder None: by words, entities and dates."""

    def __init__(self, runtime: Runtime, embedder: Embedder | None) -> None:
        self._runtime = runtime
        policy, zone = Policy.of(runtime.settings), runtime.settings.zone
        self._recall = MemoryRecall(embedder, policy, patience_s=EMBEDDING_PATIENCE_S, zone=zone)
        self._memories = Memories(runtime.log, runtime.pool)

    def block_of(self, request: Event, model: str) -> "asyncio.Task[MemoryBlock]":
        """The block for a request, sought on a connection of its own while the thread is read."""
        return asyncio.create_task(self._block(request, model), name=f"memories-{request.id}")

    async def found(self, tenant: str, user: str | None, query: str, k: int, now: datetime) -> MemoriesFound:
        """Nothing without a user, or where MEMORY_LONG_TERM is off."""
        if not user or not self._runtime.settings.long_term:
            return MemoriesFound()
        async with self._runtime.pool.connection() as conn:
            return await self._recall.search(conn, MemoryScope(tenant, memory_thread(user), now), query, k)

    async def accessed(self, request: Event, ids: Iterable[UUID]) -> None:
        """Once for each answer, after it; that memories were read is no reason for an answer to fail."""
        read = list(ids)
        if not read or not request.user:
            return
        try:
            await self._memories.accessed(request.tenant, request.user, read, cause=request.id)
        except TurnlogError as error:
            logger.warning("that %d memories were read is not noted: %s", len(read), error)

    async def _block(self, request: Event, model: str) -> MemoryBlock:
        assert isinstance(request.data, AnswerRequested)
        settings = self._runtime.settings
        if not request.user or not settings.long_term:
            return MemoryBlock()
        async with self._runtime.pool.connection() as conn:
            asked = await message_by_event(conn, request.tenant, request.thread, request.data.turn_id)
            question = content_text(asked.content) if asked else ""
            return await recalled_block(
                conn, self._recall, settings, request.tenant, request.user, question, request.time, model
            )
