"""The block for a question: recall of the user's memories, and their block again from the ids of a receipt."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from turnlog.agent.context import counter_for
from turnlog.agent.memories.block import MemoryBlock, memory_block, room, same_block
from turnlog.agent.memories.retrieval import MemoryRecall
from turnlog.agent.settings import Settings
from turnlog.events.subjects import memory_thread
from turnlog.projectors.memory_lookup import memories_by_id
from turnlog.projectors.memory_search import MemoryScope
from turnlog.projectors.writer import Connection


async def recalled_block(
    conn: Connection,
    recall: MemoryRecall,
    settings: Settings,
    tenant: str,
    user: str | None,
    question: str,
    now: datetime,
    model: str,
    window: int | None = None,
) -> MemoryBlock:
    """Those of the user's memories that a question asked at `now` needs; none without a user or a question.

    model, window: of the request that the block goes into; None: the window of the settings.
    """
    if not settings.long_term or not user or not question.strip():
        return MemoryBlock()
    scope = MemoryScope(tenant, memory_thread(user), now)
    found = await recall.search(conn, scope, question, settings.long_term_top_k)
    limit = room(settings.context_window if window is None else window, model)
    return memory_block([one.memory for one in found.memories], counter_for(model), limit)


async def block_of(
    conn: Connection, tenant: str, user: str | None, ids: Iterable[str], model: str
) -> tuple[MemoryBlock, tuple[UUID, ...]]:
    """The block that a receipt tells of, and which of its memories were forgotten or deleted since."""
    wanted = [UUID(one) for one in ids]
    if not wanted or not user:
        return MemoryBlock(), tuple(wanted)
    rows = await memories_by_id(conn, tenant, memory_thread(user), wanted)
    gone = tuple(one for one in wanted if one not in rows or rows[one].status == "forgotten")
    return same_block([rows[one] for one in wanted if one in rows], counter_for(model)), gone
