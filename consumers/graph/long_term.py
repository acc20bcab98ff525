"""The user's long-term memories (P7) for the graph: sought with the rest, and noted as read with the answer."""

from typing import NamedTuple
from uuid import UUID

from turnlog.agent.context import counter_for
from turnlog.agent.memories.block import memory_text
from turnlog.agent.memories.retrieval import MemoryRecall
from turnlog.agent.memories.service import Memories
from turnlog.agent.memories.writing import utc_now
from turnlog.agent.settings import Settings
from turnlog.consumers.graph.state import ConversationState, question
from turnlog.consumers.runtime import Pool
from turnlog.events.subjects import memory_thread
from turnlog.projectors.memory_search import MemoryScope


class LongTerm(NamedTuple):
    """Memories as lines, best first, with their ids; why vectors took no part, '' when they did."""

    lines: list[str]
    ids: list[str]
    degraded: str = ""


NOTHING = LongTerm([], [])


async def long_term(pool: Pool, recall: MemoryRecall, settings: Settings, state: ConversationState) -> LongTerm:
    """Nothing without a user or a question, or where MEMORY_LONG_TERM is off."""
    asked, user = question(state["messages"]), state["user_id"]
    if not settings.long_term or not user or not asked.strip():
        return NOTHING
    scope, counter = MemoryScope(settings.tenant, memory_thread(user), utc_now()), counter_for(settings.model)
    async with pool.connection() as conn:
        found = await recall.search(conn, scope, asked, settings.long_term_top_k)
    rows = [one.memory for one in found.memories]
    return LongTerm([memory_text(row, counter) for row in rows], [str(row.id) for row in rows], found.degraded or "")


async def note_access(memories: Memories, settings: Settings, state: ConversationState, answer: UUID) -> None:
    """Once for each answer, however often the node runs. Raises LogUnavailable, LogFull."""
    read = [UUID(one) for one in state.get("memory_ids") or ()]
    if read and state["user_id"]:
        await memories.accessed(settings.tenant, state["user_id"], read, cause=answer)
