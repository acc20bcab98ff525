"""Retrieves the memories, preferences and entities that a model should know for a user's message.

memory_block.py turns them into a message to the model; the turns of the conversation come from the tiers.

A caller that uses the memories records the access with `Memories.accessed` afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from turnlog.agent.context.about_memory import asks_for_everything
from turnlog.agent.memory.preferences import Preferences, user_preferences, with_said
from turnlog.agent.recall.memory_search import TOP_K, MemoryRecall, RecalledMemory
from turnlog.events.local_time import local, zone_or
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.entities_lookup import entities_named
from turnlog.projectors.models.memories.lookup import (
    StoredMemory,
    memories_for_any_question,
    preferences_set,
)
from turnlog.projectors.models.memories.memory_candidates import MemoryScope

NONE = Preferences()
EVERYTHING = 100  # maximum number of memories for a question that asks for all of them


@dataclass(frozen=True, slots=True)
class RetrievalContext:
    """Everything that was retrieved for a message. memories: best first, each with `explain()`. always: further
    memories that a model gets with any question: all memories if the user has at most top_k (or at most EVERYTHING, if
    the message asks for all), otherwise up to ten about health. entities: entities named in the message or in the
    memories, most mentioned first. message_count: number of turns in the conversation. degraded: why vectors were not
    used, or None."""

    memories: tuple[RecalledMemory, ...] = ()
    always: tuple[StoredMemory, ...] = ()
    preferences: Preferences = NONE
    entities: tuple[dict[str, Any], ...] = ()
    message_count: int = 0
    degraded: str | None = None

    @property
    def shown(self) -> list[StoredMemory]:
        """Returns the memories that a model gets: the most relevant ones, then those that it must always know."""
        return [*(recalled.memory for recalled in self.memories), *self.always]


async def retrieval_context(
    conn: Connection,
    recall: MemoryRecall,
    tenant: str,
    user: str,
    message: str,
    now: datetime,
    message_count: int = 0,
    top_k: int = TOP_K,
) -> RetrievalContext:
    """Returns the memories, preferences and entities that a model should know for a user's message. message_count:
    number of turns in the conversation.

    If the user has set enable_memory to False, it returns only the preferences set by hand. Raises InvalidToken.
    """
    memories = memory_thread(user)
    by_hand = await preferences_set(conn, tenant, memories)
    if by_hand.enable_memory is False:
        return RetrievalContext(preferences=Preferences(by_hand))
    now = local(now, zone_or(by_hand.timezone, UTC))
    result = await recall.search(conn, MemoryScope(tenant, memories, now), message, top_k)
    preferences, any_question = user_preferences((), by_hand), list[StoredMemory]()
    if result.has_any:
        preferences = await with_said(conn, tenant, memories, now, by_hand)
        few = EVERYTHING if asks_for_everything(message) else top_k
        any_question = await memories_for_any_question(conn, tenant, memories, now, few)
    ids = {recalled.memory.id for recalled in result.memories}
    always = tuple(memory for memory in any_question if memory.id not in ids)
    names = {*result.names, *(name for recalled in result.memories for name in recalled.memory.entities)}
    about = await entities_named(conn, tenant, memories, names) if names else []
    return RetrievalContext(result.memories, always, preferences, tuple(about), message_count, result.degraded)


def entity_line(entity: Mapping[str, Any]) -> str:
    """Returns an entity as a line for a model: its type and name, then its description, attributes and relations."""
    known = [entity["description"]] if entity["description"] else []
    known += [f"{name} {_value(value)}" for name, value in entity["attributes"].items()]
    known += [f"{relation['type']} {relation['target']}" for relation in entity["relations"]]
    return f"{entity['type']} {entity['name']}" + (f": {'; '.join(known)}" if known else "")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()
