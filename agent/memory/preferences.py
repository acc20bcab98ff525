"""A user's preferences: how to answer, and whether to remember."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from uuid_utils.compat import uuid7

from turnlog.agent.memory.deciding.writing import Place
from turnlog.agent.recall.retrieval_context import preferences_of
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, PreferencesSet, UserPreferences
from turnlog.events.errors import TurnlogError
from turnlog.events.local_time import zone_named

SOURCE = "turnlog/preferences"
READS = ("memories",)


class InvalidPreference(TurnlogError):
    """A preference has an unknown name, or a value that it cannot have."""

    code = "invalid-preference"


async def show_preferences(runtime: Runtime, tenant: str, user: str) -> UserPreferences:
    """Preferences set by hand, else as the user said them last; None where there is neither. Raises InvalidToken."""
    place = Place(tenant, user)
    await runtime.settle_thread(tenant, place.thread, READS)
    async with runtime.pool.connection() as conn:
        return (await preferences_of(conn, tenant, user, datetime.now(UTC))).named


async def set_preferences(
    runtime: Runtime,
    tenant: str,
    user: str,
    given: Mapping[str, Any],
    cleared: Sequence[str] = (),
    *,
    event_id: UUID | None = None,
) -> UserPreferences:
    """given: values by the names of UserPreferences; others stay as they are. cleared: names of preferences to remove.
    event_id: a call that is repeated with it is stored once.

    Raises InvalidPreference, InvalidToken.
    """
    thread = Place(tenant, user).thread
    if unknown := [name for name in (*given, *cleared) if name not in UserPreferences.model_fields]:
        known = ", ".join(UserPreferences.model_fields)
        raise InvalidPreference(f"there is no preference {unknown[0]!r}; there are {known}")
    try:
        zone_named(given.get("timezone") or "UTC")
        data = PreferencesSet(preferences=UserPreferences(**given), cleared=tuple(cleared))
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidPreference(f"{problem['loc'][0]}: {problem['msg'].lower()}") from None
    except (ValueError, TypeError) as error:
        raise InvalidPreference(f"timezone: {error}") from None
    id_ = event_id or uuid7()
    await runtime.log.append(Event(id=id_, source=SOURCE, tenant=tenant, thread=thread, user=user, data=data))
    return await show_preferences(runtime, tenant, user)
