"""Reads one memory thread: current and past memories, by id, key or content, preferences and open questions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from turnlog.events.contracts import EndReason, MemoryKind, MemorySource, Origin, Strategy, UserPreferences
from turnlog.events.local_time import zone_or
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.sql import ON_HEALTH

SAME_KEY_UP_TO = 200


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A memory without the columns that only its storage needs. importance: the value at importance_at;
    agent/memory/deciding/policy.py computes the current value.

    status: valid, pending, closed, archived or forgotten. thread: the user's memory thread.
    """

    id: UUID
    thread: str
    user: str
    seq: int
    status: str
    kind: MemoryKind
    category: str | None
    content: str
    value: str | None
    dedupe_key: str | None
    strategy: Strategy
    origin: Origin
    rule: str | None
    importance: float
    importance_at: datetime
    confidence: float
    access_count: int
    last_accessed_at: datetime | None
    valid_from: datetime
    valid_to: datetime | None
    replaced_by: UUID | None
    closed_reason: EndReason | None
    expires_at: datetime | None
    created_at: datetime
    confirmed_at: datetime
    archived_at: datetime | None
    archived_reason: str | None
    sources: tuple[MemorySource, ...]
    entities: tuple[str, ...]
    metadata: dict[str, Any] | None

    @property
    def said_from(self) -> datetime:
        """Returns valid_from in the time zone of the first source."""
        return self.valid_from.astimezone(self.first_said_at.tzinfo)

    @property
    def first_said_at(self) -> datetime:
        """Returns the time of the first source. Unlike valid_from, it does not change when an older conversation is
        imported."""
        return self.sources[0].said_at if self.sources else self.created_at


# The position of a memory in the list ordered by when it was last said: confirmed_at, seq, id.
LastSaid = tuple[datetime, int, UUID]


@dataclass(frozen=True, slots=True)
class StoredMemory(MemoryRow):
    """A row of `memories`. content_key: the result of text.content_key."""

    content_key: bytes
    embedding_model: str | None


FIELDS = (
    "m.id, m.thread_id, m.user_id, m.seq, m.status, m.kind, m.category, m.content, m.value, "
    "m.dedupe_key, m.strategy, m.origin, m.rule, m.importance, m.importance_at, m.confidence, m.access_count, "
    "m.last_accessed_at, m.valid_from, m.valid_to, m.replaced_by, m.closed_reason, m.expires_at, m.created_at, "
    "m.confirmed_at, m.archived_at, m.archived_reason, m.sources, m.entities, m.metadata, "
    "m.content_key, m.embedding_model"
)
SOURCES, ENTITIES = 27, 28
# A memory whose time to live has ended is invalid at once, before the daily job closes it.
VALID_AT = "m.valid_from <= %(at)s AND coalesce(least(m.valid_to, m.expires_at) > %(at)s, true)"
IN_THREAD = "m.tenant = %(tenant)s AND m.thread_id = %(thread)s"
# Without statistics Postgres may choose an index on tenant and thread instead of the index on thread and key. IS NOT
# DISTINCT FROM cannot use an index on the tenant, so Postgres chooses the index on thread and key.
_INDEXED = "m.thread_id = %(thread)s AND m.tenant IS NOT DISTINCT FROM %(tenant)s"


def stored_memory(row: Sequence[Any]) -> StoredMemory:
    """Makes a memory from a row of the columns FIELDS; further columns are ignored."""
    values = list(row[: ENTITIES + 4])
    values[SOURCES] = tuple(MemorySource.model_validate(source) for source in values[SOURCES])
    values[ENTITIES] = tuple(values[ENTITIES])
    return StoredMemory(*values)


async def valid_memories(
    conn: Connection,
    tenant: str,
    thread: str,
    at: datetime,
    kinds: Sequence[str] = (),
    limit: int = 100,
    after: LastSaid | None = None,
    statuses: Sequence[str] = ("valid",),
) -> list[StoredMemory]:
    """Returns memories that are valid at `at` and have one of the statuses, most recently said first. after: the
    position of the last memory of the previous page."""
    held = f"{VALID_AT} AND m.status = ANY(%(statuses)s) AND m.closed_reason IS DISTINCT FROM 'rejected'"
    params = {"tenant": tenant, "thread": thread, "at": at, "statuses": list(statuses)}
    return await _said_last_first(conn, held, params, kinds, limit, after)


async def memories_for_any_question(
    conn: Connection, tenant: str, thread: str, at: datetime, few: int, most_on_health: int = 10
) -> list[StoredMemory]:
    """Returns all valid memories if there are at most `few`, else up to `most_on_health` about health; most recently
    said first."""
    held = f"{IN_THREAD} AND {VALID_AT} AND m.status = 'valid'"
    accepted = "m.closed_reason IS DISTINCT FROM 'rejected'"
    are_few = (
        f"(SELECT count(*) FROM (SELECT FROM memories m WHERE {held} AND {accepted} LIMIT %(few)s + 1) m) <= %(few)s"
    )
    return await _memories(
        conn,
        f"{held} AND CASE WHEN {are_few} THEN {accepted} ELSE ({ON_HEALTH}) END "
        f"ORDER BY m.confirmed_at DESC, m.seq DESC, m.id LIMIT CASE WHEN {are_few} THEN %(few)s ELSE %(limit)s END",
        {"tenant": tenant, "thread": thread, "at": at, "few": few, "limit": most_on_health},
    )


async def preferences_set(conn: Connection, tenant: str, thread: str) -> UserPreferences:
    """Returns the preferences that the user of a memory thread set by hand."""
    rows = await conn.execute(
        "SELECT preferences FROM user_preferences WHERE tenant = %s AND thread_id = %s", (tenant, thread)
    )
    row = await rows.fetchone()
    return UserPreferences.model_validate(row[0]) if row else UserPreferences()


async def zone_of(conn: Connection, tenant: str, user: str, default: tzinfo) -> tzinfo:
    """Returns the time zone that a user set, else the default."""
    return zone_or((await preferences_set(conn, tenant, memory_thread(user))).timezone, default)


async def remembers_secrets(conn: Connection, tenant: str, user: str, allowed: bool) -> bool:
    """Returns whether memories of a user may contain secrets. allowed: see keeps_secrets."""
    return keeps_secrets(await preferences_set(conn, tenant, memory_thread(user)), allowed)


def keeps_secrets(preferences: UserPreferences, allowed: bool) -> bool:
    """Returns whether memories may contain secrets. allowed: whether the operator allows it. A person can forbid it but
    cannot allow it, because the operator decides which models read the memories."""
    return allowed and preferences.secrets in (None, "keep")


async def is_memory_off(conn: Connection, tenant: str, thread: str) -> bool:
    """Returns whether the user of a memory thread has switched memory off."""
    return (await preferences_set(conn, tenant, thread)).enable_memory is False


# Returns memories with valid_from <= at < valid_to, even if they were archived or closed later; not forgotten ones.
memories_as_of = partial(valid_memories, statuses=("valid", "archived", "closed"))


async def memories_by_id(conn: Connection, tenant: str, thread: str, ids: Iterable[UUID]) -> dict[UUID, StoredMemory]:
    """Returns memories by their ids, in any status; unknown ids are left out."""
    params = {"tenant": tenant, "thread": thread, "ids": list(ids)}
    memories = await _memories(conn, f"{IN_THREAD} AND m.id = ANY(%(ids)s::uuid[])", params)
    return {memory.id: memory for memory in memories}


async def every_memory(
    conn: Connection,
    tenant: str,
    thread: str,
    kinds: Sequence[str] = (),
    limit: int = 100,
    after: LastSaid | None = None,
) -> list[StoredMemory]:
    """Returns memories in any status, most recently said first."""
    return await _said_last_first(conn, "true", {"tenant": tenant, "thread": thread}, kinds, limit, after)


async def memories_by_prefix(
    conn: Connection, tenant: str, thread: str, prefix: str, limit: int = 10
) -> list[StoredMemory]:
    """Returns memories whose id begins with `prefix`, in any status."""
    return await _memories(
        conn,
        f"{IN_THREAD} AND starts_with(m.id::text, %(prefix)s) ORDER BY m.seq, m.id LIMIT %(limit)s",
        {"tenant": tenant, "thread": thread, "prefix": prefix, "limit": limit},
    )


async def memories_with_words(
    conn: Connection, tenant: str, thread: str, words: str, statuses: Sequence[str], limit: int = 10
) -> list[StoredMemory]:
    """Returns memories whose content contains `words` (case is ignored), most recently said first."""
    return await _memories(
        conn,
        f"{IN_THREAD} AND m.status = ANY(%(statuses)s) AND strpos(lower(m.content), lower(%(words)s)) > 0 "
        "ORDER BY m.confirmed_at DESC, m.seq DESC, m.id LIMIT %(limit)s",
        {"tenant": tenant, "thread": thread, "words": words, "statuses": list(statuses), "limit": limit},
    )


async def users_with_memory(conn: Connection, tenant: str, memory_id: UUID) -> list[str]:
    """Returns up to two users who have a memory of this id; trial derivations are ignored."""
    rows = await conn.execute(
        "SELECT DISTINCT user_id FROM memories WHERE tenant = %s AND id = %s AND thread_id LIKE 'memories/%%' "
        "ORDER BY user_id LIMIT 2",
        (tenant, memory_id),
    )
    return [user for (user,) in await rows.fetchall()]


async def memories_with_keys(
    conn: Connection,
    tenant: str,
    thread: str,
    dedupe_keys: Iterable[str],
    content_keys: Iterable[bytes],
    ids: Iterable[UUID] = (),
) -> list[StoredMemory]:
    """Returns memories with one of the keys or ids, in any status. There are at most SAME_KEY_UP_TO for each key, the
    newest, and for each dedupe key also as many that are valid, archived or pending.

    Each look-up uses an index, so the time does not depend on how many memories the user has.
    """
    newest = "ORDER BY m.seq DESC LIMIT %(limit)s"
    in_use = "AND m.status IN ('valid', 'archived', 'pending')"
    rows = await conn.execute(
        f"""
        SELECT {FIELDS} FROM unnest(%(keys)s::text[]) k CROSS JOIN LATERAL (
          (SELECT * FROM memories m WHERE {_INDEXED} AND m.dedupe_key = k {newest})
          UNION ALL (SELECT * FROM memories m WHERE {_INDEXED} AND m.dedupe_key = k {in_use} {newest})) m
        UNION ALL SELECT {FIELDS} FROM unnest(%(contents)s::bytea[]) c CROSS JOIN LATERAL (
          SELECT * FROM memories m WHERE {_INDEXED} AND m.content_key = c {newest}) m
        UNION ALL SELECT {FIELDS} FROM memories m WHERE {IN_THREAD} AND m.id = ANY(%(ids)s::uuid[])""".encode(),
        {
            **{"tenant": tenant, "thread": thread, "keys": sorted(set(dedupe_keys))},
            **{"contents": sorted(set(content_keys)), "ids": list(ids), "limit": SAME_KEY_UP_TO},
        },
    )
    by_id = {row[0]: row for row in await rows.fetchall()}
    return sorted(map(stored_memory, by_id.values()), key=lambda memory: (memory.seq, str(memory.id)))


@dataclass(frozen=True, slots=True)
class Conflict:
    """A question to the user. memory_id: the pending memory. against: the memories that it contradicts."""

    conflict_id: UUID
    memory_id: UUID
    against: list[UUID]
    question: str
    raised_at: datetime
    answer: str | None
    answered_at: datetime | None


async def conflicts(
    conn: Connection, tenant: str, thread: str, conflict_id: UUID | None = None, answered: bool = False
) -> list[Conflict]:
    """Returns open questions, oldest first. answered: True returns answered questions too. conflict_id: returns only
    this question."""
    cursor = conn.cursor(row_factory=class_row(Conflict))
    await cursor.execute(
        "SELECT conflict_id, memory_id, against, question, raised_at, answer, answered_at FROM memory_conflicts "
        "WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND (%(id)s::uuid IS NULL OR conflict_id = %(id)s) "
        "AND (%(answered)s OR answer IS NULL) ORDER BY raised_at, conflict_id",
        {"tenant": tenant, "thread": thread, "id": conflict_id, "answered": answered},
    )
    return await cursor.fetchall()


async def unforgotten(conn: Connection, tenant: str, thread: str, limit: int) -> list[UUID]:
    """Returns ids of memories that are not forgotten, oldest first."""
    rows = await conn.execute(
        "SELECT id FROM memories WHERE tenant = %s AND thread_id = %s AND status <> 'forgotten' "
        "ORDER BY seq, id LIMIT %s",
        (tenant, thread, limit),
    )
    return [id_ for (id_,) in await rows.fetchall()]


async def _said_last_first(
    conn: Connection, where: str, params: dict[str, Any], kinds: Sequence[str], limit: int, after: LastSaid | None
) -> list[StoredMemory]:
    said_at, seq, id_ = after or (None, None, None)
    return await _memories(
        conn,
        f"{IN_THREAD} AND {where} AND (%(kinds)s::text[] = '{{}}' OR m.kind = ANY(%(kinds)s)) "
        "AND (%(said_at)s::timestamptz IS NULL OR (m.confirmed_at, m.seq) < (%(said_at)s, %(seq)s::bigint) "
        "OR (m.confirmed_at, m.seq) = (%(said_at)s, %(seq)s) AND m.id > %(id)s::uuid) "
        "ORDER BY m.confirmed_at DESC, m.seq DESC, m.id LIMIT %(limit)s",
        {**params, "kinds": list(kinds), "limit": limit, "said_at": said_at, "seq": seq, "id": id_},
    )


async def _memories(conn: Connection, where: str, params: dict[str, Any]) -> list[StoredMemory]:
    rows = await conn.execute(f"SELECT {FIELDS} FROM memories m WHERE {where}".encode(), params)
    return [stored_memory(row) for row in await rows.fetchall()]
