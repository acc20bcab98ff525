"""All that an answer to a message of a user could want to know, in one value (M7, E 8.1.3, 10.5).

Turns, memories, preferences and entities; whoever uses them notes the access with `Memories.accessed` afterwards.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnlog.agent.memories.preferences import UserPreferences, folded
from turnlog.agent.memories.retrieval import TOP_K, MemoryRecall, RecalledMemory
from turnlog.events.subjects import memory_thread
from turnlog.projectors.entity_lookup import entities_named
from turnlog.projectors.memory_lookup import valid_memories
from turnlog.projectors.memory_search import MemoryScope
from turnlog.projectors.message import Message
from turnlog.projectors.messages import newest_messages
from turnlog.projectors.writer import Connection

RECENT_MESSAGES = 10
PREFERENCES = 100


@dataclass(frozen=True, slots=True)
class ContextMeta:
    """message_count, memory_count: what the context holds of each. degraded: why vectors took no part, or None."""

    thread: str | None
    message_count: int
    memory_count: int
    degraded: str | None


@dataclass(frozen=True, slots=True)
class RetrievalContext:
    """recent_messages: oldest first. relevant_memories: best first, each with `explain()`. entities: those that the
    message names or the memories are about, the most mentioned first, as rows of P8."""

    recent_messages: tuple[Message, ...]
    relevant_memories: tuple[RecalledMemory, ...]
    preferences: UserPreferences
    entities: tuple[dict[str, Any], ...]
    meta: ContextMeta


async def retrieval_context(
    conn: Connection,
    recall: MemoryRecall,
    tenant: str,
    user: str,
    message: str,
    thread: str | None = None,
    *,
    now: datetime | None = None,
    recent_messages: int = RECENT_MESSAGES,
    top_k: int = TOP_K,
) -> RetrievalContext:
    """What is known for a message of a user, in a conversation or in none yet. Raises InvalidToken."""
    memories, at = memory_thread(user), now or datetime.now(UTC)
    recent = [] if thread is None else await newest_messages(conn, tenant, thread, recent_messages)
    found = await recall.search(conn, MemoryScope(tenant, memories, at), message, top_k)
    names = {*found.names, *(name for one in found.memories for name in one.memory.entities)}
    about = await entities_named(conn, tenant, memories, names) if names else []
    preferred = await valid_memories(conn, tenant, memories, at, ("PREFERENCE",), PREFERENCES)
    meta = ContextMeta(thread, len(recent), len(found.memories), found.degraded)
    return RetrievalContext(tuple(recent), found.memories, folded(preferred), tuple(about), meta)
