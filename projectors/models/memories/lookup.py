"""Reads one memory thread: memories that are or were valid, by id, key or content, and their history."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from turnlog.events.contracts import EndReason, MemoryKind, MemorySource, Origin, Strategy, UserPreferences
from turnlog.events.local_time import zone_or
from turnlog.events.subjects import MEMORIES, memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.sql import ON_HEALTH

SAME_KEY_UP_TO = 200
CHAIN_UP_TO = 1_000
MERGE_REASONS: tuple[EndReason, ...] = ("duplicate", "merged", "edited")


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A memory without the columns that only its storage needs. importance: at importance_at;
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
        """valid_from on the clock of the one who said it first."""
        return self.valid_from.astimezone(self.first_said_at.tzinfo)

    @property
    def first_said_at(self) -> datetime:
        """Time of the first source; unlike valid_from it does not change when an older conversation is imported."""
        return self.sources[0].said_at if self.sources else self.created_at


# Where a memory is in the list of those that were said last: confirmed_at, seq, id.
LastSaid = tuple[datetime, int, UUID]


@dataclass(frozen=True, slots=True)
class StoredMemory(MemoryRow):
    """A row of `memories`. content_key: as text.content_key returns it."""

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
# A time to live ends a memory at once, before the daily job closes it.
VALID_AT = "m.valid_from <= %(at)s AND coalesce(least(m.valid_to, m.expires_at) > %(at)s, true)"
IN_THREAD = "m.tenant = %(tenant)s AND m.thread_id = %(thread)s"
# Without statistics Postgres takes an index on tenant and thread to be as good as one that also has the key. Comparing
# the tenant in a way that no index supports makes it use the index on thread and key.
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
    """Returns valid, not archived memories, most recently said first. after: the place of the memory they continue
    behind."""
    held = f"{VALID_AT} AND m.status = ANY(%(statuses)s) AND m.closed_reason IS DISTINCT FROM 'rejected'"
    params = {"tenant": tenant, "thread": thread, "at": at, "statuses": list(statuses)}
    return await _said_last_first(conn, held, params, kinds, limit, after)


async def memories_for_any_question(
    conn: Connection, tenant: str, thread: str, at: datetime, few: int, most_on_health: int = 10
) -> list[StoredMemory]:
    """Returns all valid memories where there are at most `few`, else those on health; most recently said first."""
    held = await valid_memories(conn, tenant, thread, at, limit=few + 1)
    if len(held) <= few:
        return held
    return await _memories(
        conn,
        f"{IN_THREAD} AND {VALID_AT} AND m.status = 'valid' AND ({ON_HEALTH}) "
        "ORDER BY m.confirmed_at DESC, m.seq DESC, m.id LIMIT %(limit)s",
        {"tenant": tenant, "thread": thread, "at": at, "limit": most_on_health},
    )


async def preferences_set(conn: Connection, tenant: str, thread: str) -> UserPreferences:
    """Returns the preferences that the user of a memory thread set by hand."""
    rows = await conn.execute(
        "SELECT preferences FROM user_preferences WHERE tenant = %s AND thread_id = %s", (tenant, thread)
    )
    found = await rows.fetchone()
    return UserPreferences.model_validate(found[0]) if found else UserPreferences()


async def zone_of(conn: Connection, tenant: str, user: str, default: tzinfo) -> tzinfo:
    """Returns the time zone that a user set, else the default."""
    return zone_or((await preferences_set(conn, tenant, memory_thread(user))).timezone, default)


async def is_memory_off(conn: Connection, tenant: str, thread: str) -> bool:
    """Returns whether the user of a memory thread wants nothing remembered."""
    return (await preferences_set(conn, tenant, thread)).enable_memory is False


# Memories with valid_from <= at < valid_to, whatever happened to them later, except forgotten ones.
memories_as_of = partial(valid_memories, statuses=("valid", "archived", "closed"))


async def memories_by_id(conn: Connection, tenant: str, thread: str, ids: Iterable[UUID]) -> dict[UUID, StoredMemory]:
    """Returns memories by their ids, in any status; unknown ids are left out."""
    params = {"tenant": tenant, "thread": thread, "ids": list(ids)}
    found = await _memories(conn, f"{IN_THREAD} AND m.id = ANY(%(ids)s::uuid[])", params)
    return {one.id: one for one in found}


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
    """Returns up to two users who have a memory of this id; shadow threads are ignored."""
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
    """Returns memories with one of the keys or ids, in any status: the newest SAME_KEY_UP_TO of each key, and all in
    use.

    Each is found by an index, so the time does not depend on how many memories the user has.
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
    found = {row[0]: row for row in await rows.fetchall()}
    return sorted(map(stored_memory, found.values()), key=lambda one: (one.seq, str(one.id)))


async def history(conn: Connection, tenant: str, thread: str, memory_id: UUID) -> list[StoredMemory]:
    """Returns a memory with all memories that it replaced and that replaced it, by valid_from; [] when the id is
    unknown."""
    return await _chain(conn, tenant, thread, memory_id, None, CHAIN_UP_TO)


async def family(conn: Connection, tenant: str, thread: str, memory_id: UUID) -> list[StoredMemory]:
    """Returns a memory with all that were merged into it or that it was merged into: duplicates, members, edited
    versions."""
    return await _chain(conn, tenant, thread, memory_id, MERGE_REASONS, None)


async def _chain(
    conn: Connection, tenant: str, thread: str, memory_id: UUID, reasons: Sequence[EndReason] | None, most: int | None
) -> list[StoredMemory]:
    """Returns the memories linked to one by the reasons. OFFSET 0 stops the planner from moving the look-ups out of the
    loop: each uses its index, see _INDEXED."""
    is_link = "(%(reasons)s::text[] IS NULL OR {}.closed_reason = ANY(%(reasons)s))"
    rows = await conn.execute(
        f"""
        WITH RECURSIVE chain AS (
          SELECT m.id, m.replaced_by, m.closed_reason FROM memories m WHERE {IN_THREAD} AND m.id = %(id)s
          UNION SELECT m.id, m.replaced_by, m.closed_reason FROM chain c CROSS JOIN LATERAL (
            (SELECT * FROM memories m WHERE m.replaced_by = c.id AND m.tenant IS NOT DISTINCT FROM %(tenant)s
              AND m.thread_id IS NOT DISTINCT FROM %(thread)s AND {is_link.format("m")} OFFSET 0)
            UNION ALL
            (SELECT * FROM memories m WHERE {IN_THREAD} AND m.id = c.replaced_by AND {is_link.format("c")} OFFSET 0)
          ) m)
        SELECT {FIELDS} FROM (SELECT id FROM chain LIMIT %(most)s::int) c
        CROSS JOIN LATERAL (SELECT * FROM memories m WHERE {IN_THREAD} AND m.id = c.id OFFSET 0) m
        ORDER BY m.valid_from, m.seq, m.id""".encode(),
        {
            **{"tenant": tenant, "thread": thread, "id": memory_id, "most": most},
            "reasons": None if reasons is None else list(reasons),
        },
    )
    return [stored_memory(row) for row in await rows.fetchall()]


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
    """Returns open questions, oldest first. answered: answered ones too. conflict_id: that one only."""
    cursor = conn.cursor(row_factory=class_row(Conflict))
    await cursor.execute(
        "SELECT conflict_id, memory_id, against, question, raised_at, answer, answered_at FROM memory_conflicts "
        "WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND (%(id)s::uuid IS NULL OR conflict_id = %(id)s) "
        "AND (%(answered)s OR answer IS NULL) ORDER BY raised_at, conflict_id",
        {"tenant": tenant, "thread": thread, "id": conflict_id, "answered": answered},
    )
    return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one stage of the extraction has read a conversation. error: of the last run."""

    through_seq: int
    extractor: str
    found: int
    stored: int
    error: str | None
    extracted_at: datetime


async def turns_of_forgotten(conn: Connection, tenant: str, thread: str, event_ids: Collection[UUID]) -> set[UUID]:
    """Returns the turns that are a source of a forgotten memory."""
    rows = await conn.execute(
        "SELECT DISTINCT s ->> 'event_id' FROM memories m, jsonb_array_elements(m.sources) s WHERE m.tenant = %s "
        "AND m.thread_id = %s AND m.status = 'forgotten' AND s ->> 'event_id' = ANY(%s::text[])",
        (tenant, thread, [str(id_) for id_ in event_ids]),
    )
    return {UUID(found) for (found,) in await rows.fetchall()}


async def memories_of_turn_before(
    conn: Connection, tenant: str, thread: str, conversation: str, user: str, seq: int
) -> list[tuple[UUID, UUID | None]]:
    """Returns valid memories whose only source is the user's turn before a sequence of the conversation, each with the
    memory that it replaced."""
    rows = await conn.execute(
        "WITH said AS (SELECT event_id::text AS id FROM messages WHERE tenant = %(tenant)s "
        "AND thread_id = %(conversation)s AND user_id = %(user)s AND role = 'user' AND origin = 'person' "
        "AND seq < %(seq)s ORDER BY seq DESC LIMIT 1) "
        "SELECT m.id, (SELECT r.id FROM memories r WHERE r.tenant = m.tenant AND r.thread_id = m.thread_id "
        "AND r.replaced_by = m.id AND r.status = 'closed' AND r.closed_reason = 'superseded' "
        "AND (r.expires_at IS NULL OR r.expires_at > now()) ORDER BY r.valid_from DESC LIMIT 1) "
        "FROM memories m, said WHERE m.tenant = %(tenant)s AND m.thread_id = %(thread)s "
        "AND m.status = 'valid' AND m.sources <> '[]' AND NOT EXISTS "
        "(SELECT FROM jsonb_array_elements(m.sources) s WHERE s ->> 'event_id' <> said.id) ORDER BY m.seq, m.id",
        {"tenant": tenant, "thread": thread, "conversation": conversation, "user": user, "seq": seq},
    )
    return await rows.fetchall()


async def unforgotten(conn: Connection, tenant: str, thread: str, limit: int) -> list[UUID]:
    """Returns ids of memories with words, in any other status, oldest first."""
    rows = await conn.execute(
        "SELECT id FROM memories WHERE tenant = %s AND thread_id = %s AND status <> 'forgotten' "
        "ORDER BY seq, id LIMIT %s",
        (tenant, thread, limit),
    )
    return [id_ for (id_,) in await rows.fetchall()]


async def extraction_progress(
    conn: Connection, tenant: str, thread: str, conversation: str, stage: str
) -> Progress | None:
    cursor = conn.cursor(row_factory=class_row(Progress))
    await cursor.execute(
        "SELECT through_seq, extractor, found, stored, error, extracted_at FROM memory_extractions "
        "WHERE tenant = %s AND thread_id = %s AND conversation = %s AND stage = %s",
        (tenant, thread, conversation, stage),
    )
    return await cursor.fetchone()


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


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """The values of a memory that its policy needs. thread: may be a shadow. importance: at importance_at.

    confirmed_at: when it was last said, but not before turnlog recorded it: imported conversations may be old.
    """

    tenant: str
    thread: str
    user: str
    id: UUID
    status: str
    importance: float
    importance_at: datetime
    confidence: float
    access_count: int
    last_accessed_at: datetime | None
    confirmed_at: datetime
    expires_at: datetime | None


_POLICY_ROWS = """
SELECT tenant, thread_id, user_id, id, status, importance, importance_at, confidence, access_count,
  last_accessed_at, greatest(confirmed_at, importance_at), expires_at
FROM memories WHERE status IN ('valid', 'archived')"""


async def policy_rows(conn: Connection, tenant: str | None = None, user: str | None = None) -> AsyncIterator[PolicyRow]:
    """Yields every valid or archived memory of all tenants, or of one, or of one user, ordered by user, from a
    server-side cursor."""
    chosen = "(%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (%(user)s::text IS NULL OR user_id = %(user)s)"
    query = f"{_POLICY_ROWS} AND {chosen} ORDER BY tenant, thread_id, id"
    async with conn.transaction(), conn.cursor("memory_policy_rows") as cursor:
        cursor.itersize = 2_000
        await cursor.execute(query.encode(), {"tenant": tenant, "user": user})
        async for row in cursor:
            yield PolicyRow(*row)


async def tier_counts(conn: Connection, policy: Mapping[str, Any], totals: Sequence[float]) -> list[int]:
    """Returns how many valid or archived memories of all tenants are in each tier, that is, the first total which a
    memory's score reaches; last come those that reach none. policy: the fields of a Policy. The score is that of
    policy.py."""
    days = "greatest(0, extract(epoch FROM now() - {})::float / 86400)"
    first = "least(1, greatest(0, importance + least(access_count * %(access_boost)s, %(max_access_boost)s)))"
    decayed = f"CASE WHEN %(enabled)s THEN greatest(least(%(floor)s, i), i - %(decay_rate)s * {days.format('since')}) "
    rows = await conn.execute(
        f"SELECT (SELECT count(*) FROM unnest(%(totals)s::float[]) t WHERE t > total + 1e-9)::int, count(*)::int FROM ("
        f"SELECT least(1, greatest(0, %(importance_weight)s * ({decayed} ELSE i END) + %(freshness_weight)s * "
        f"exp(-%(freshness_rate)s * {days.format('said')}) + %(confidence_weight)s * confidence + "
        "least(%(max_access_bonus)s, %(access_bonus)s * access_count))) AS total FROM ("
        f"SELECT {first} AS i, importance_at AS since, greatest(confirmed_at, importance_at) AS said, confidence, "
        "access_count FROM memories WHERE status IN ('valid', 'archived') AND user_id <> '' "
        "AND starts_with(thread_id, %(memories)s)) m) scored GROUP BY 1".encode(),
        {**policy, "totals": list(totals), "memories": MEMORIES},
    )
    counts: dict[int, int] = dict(await rows.fetchall())
    return [counts.get(tier, 0) for tier in range(len(totals) + 1)]


async def policy_rows_by_id(conn: Connection, tenant: str, thread: str, ids: Sequence[UUID]) -> list[PolicyRow]:
    rows = await conn.execute(
        f"{_POLICY_ROWS} AND tenant = %s AND thread_id = %s AND id = ANY(%s) ORDER BY id".encode(),
        (tenant, thread, list(ids)),
    )
    return [PolicyRow(*row) for row in await rows.fetchall()]
