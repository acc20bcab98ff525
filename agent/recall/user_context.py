"""Reads the present memories about a user directly, without a copy that must be refreshed (docs/decisions/0023)."""

from dataclasses import dataclass
from datetime import UTC, datetime

from turnlog.agent.conversations.threads import list_threads
from turnlog.agent.memory.entities import EntityFound, list_entities
from turnlog.agent.memory.memories import MemoryView, list_memories
from turnlog.agent.memory.preferences import show_preferences
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import UserPreferences

MOST = 20


@dataclass(frozen=True, slots=True)
class UserContext:
    """A user's preferences, memories, entities and last conversation. memories: the most recently said ones, highest
    score first. entities: those mentioned most. active: the conversation that was active last; None if there is
    none."""

    preferences: UserPreferences
    memories: list[MemoryView]
    entities: list[EntityFound]
    active: str | None
    read_at: datetime


async def user_context(runtime: Runtime, tenant: str, user: str) -> UserContext:
    """Returns a user's preferences, memories, entities and last conversation. Raises InvalidToken."""
    of_user = (runtime, tenant, user)
    active = await list_threads(*of_user, limit=1)
    return UserContext(
        await show_preferences(*of_user),
        await list_memories(*of_user, limit=MOST),
        await list_entities(*of_user, limit=MOST),
        active[0].thread if active else None,
        datetime.now(UTC),
    )
