"""Reading P7 and P8 of one memory thread: what holds now or held then, by id or words, and how it came about."""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, dict_row

from turnlog.events.memory_contracts import EndReason, MemoryKind, MemorySource, Origin, Strategy
from turnlog.projectors.writer import Connection

SAME_KEY_UP_TO = 200
CHAIN_UP_TO = 1_000
JOINED: tuple[EndReason, ...] = ("duplicate", "merged", "edited")


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """A row of P7. importance: as it was at importance_at; agent/memories/policy.py says what it is now.

    status: valid, pending, closed, archived or forgotten. content_key: of memory_text.content_key.
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
    content_key: bytes
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
    sources: tuple[MemorySource, ...]
    entities: tuple[str, ...]
    embedding_model: str | None

    @property
    def first_said_at(self) -> datetime:
        """As turnlog learned of it; unlike valid_from it stays when an older conversation, imported later, says it."""
        return self.sources[0].said_at if self.sources else self.created_at


FIELDS = (
    "m.id, m.thread_id, m.user_id, m.seq, m.status, m.kind, m.category, m.content, m.value, m.content_key, "
    "m.dedupe_key, m.strategy, m.origin, m.rule, m.importance, m.importance_at, m.confidence, m.access_count, "
    "m.last_accessed_at, m.valid_from, m.valid_to, m.replaced_by, m.closed_reason, m.expires_at, m.created_at, "
    "m.confirmed_at, m.archived_at, m.sources, m.entities, m.embedding_model"
)
SOURCES, ENTITIES = 27, 28
# What may be shown as true: a rule's time to live ends a memory before the daily job has seen that.
HOLDS = "m.valid_from <= %(at)s AND coalesce(least(m.valid_to, m.expires_at) > %(at)s, true)"
_THREAD = "m.tenant = %(tenant)s AND m.thread_id = %(thread)s"
# Before Postgres has counted the rows it takes any index with both columns for as good as the one with the key too.
# A comparison that no index serves leaves it no other choice; the thread, which names the user, comes first there.
_INDEXED = "m.thread_id = %(thread)s AND m.tenant IS NOT DISTINCT FROM %(tenant)s"


def stored_memory(row: Sequence[Any]) -> StoredMemory:
    """Of a row that was selected by FIELDS; further columns are left out."""
    values = list(row[: ENTITIES + 2])
    values[SOURCES] = tuple(MemorySource.model_validate(source) for source in values[SOURCES])
    values[ENTITIES] = tuple(values[ENTITIES])
    return StoredMemory(*values)


async def valid_memories(
    conn: Connection,
    tenant: str,
    thread: str,
    now: datetime,
    kinds: Sequence[str] = (),
    limit: int = 100,
    offset: int = 0,
) -> list[StoredMemory]:
    """What holds now and is not archived, said last first."""
    return await _held(conn, tenant, thread, now, ("valid",), kinds, limit, offset)


async def memories_as_of(
    conn: Connection,
    tenant: str,
    thread: str,
    at: datetime,
    kinds: Sequence[str] = (),
    limit: int = 100,
    offset: int = 0,
) -> list[StoredMemory]:
    """What held at a time, by valid_from <= at < valid_to, whatever became of it later; nothing forgotten."""
    return await _held(conn, tenant, thread, at, ("valid", "archived", "closed"), kinds, limit, offset)


async def _held(
    conn: Connection,
    tenant: str,
    thread: str,
    at: datetime,
    statuses: Sequence[str],
    kinds: Sequence[str],
    limit: int,
    offset: int,
) -> list[StoredMemory]:
    return await _memories(
        conn,
        f"{_THREAD} AND {HOLDS} AND m.status = ANY(%(statuses)s) AND m.closed_reason IS DISTINCT FROM 'rejected' "
        "AND (%(kinds)s::text[] = '{}' OR m.kind = ANY(%(kinds)s)) "
        "ORDER BY m.confirmed_at DESC, m.seq DESC, m.id LIMIT %(limit)s OFFSET %(offset)s",
        {
            **{"tenant": tenant, "thread": thread, "at": at, "statuses": list(statuses), "kinds": list(kinds)},
            **{"limit": limit, "offset": offset},
        },
    )


async def memories_by_id(conn: Connection, tenant: str, thread: str, ids: Iterable[UUID]) -> dict[UUID, StoredMemory]:
    """Those of the ids that are there, in any status."""
    params = {"tenant": tenant, "thread": thread, "ids": list(ids)}
    found = await _memories(conn, f"{_THREAD} AND m.id = ANY(%(ids)s::uuid[])", params)
    return {one.id: one for one in found}


async def rivals(
    conn: Connection,
    tenant: str,
    thread: str,
    dedupe_keys: Iterable[str],
    content_keys: Iterable[bytes],
    ids: Iterable[UUID] = (),
) -> list[StoredMemory]:
    """Memories with one of the keys or ids, in any status, ended ones too: the last SAME_KEY_UP_TO of each key, and
    those in use, which may be older.

    Found by index, however many memories the user has.
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
        UNION ALL SELECT {FIELDS} FROM memories m WHERE {_THREAD} AND m.id = ANY(%(ids)s::uuid[])""".encode(),
        {
            **{"tenant": tenant, "thread": thread, "keys": sorted(set(dedupe_keys))},
            **{"contents": sorted(set(content_keys)), "ids": list(ids), "limit": SAME_KEY_UP_TO},
        },
    )
    found = {row[0]: row for row in await rows.fetchall()}
    return sorted(map(stored_memory, found.values()), key=lambda one: (one.seq, str(one.id)))


async def history(conn: Connection, tenant: str, thread: str, memory_id: UUID) -> list[StoredMemory]:
    """A memory with all that it replaced and that replaced it, by the time since when each held; [] when unknown."""
    return await _chain(conn, tenant, thread, memory_id, None, CHAIN_UP_TO)


async def family(conn: Connection, tenant: str, thread: str, memory_id: UUID) -> list[StoredMemory]:
    """A memory with all that is in it or that it is in: duplicates, members that were merged, what an edit replaced."""
    return await _chain(conn, tenant, thread, memory_id, JOINED, None)


async def _chain(
    conn: Connection, tenant: str, thread: str, memory_id: UUID, reasons: Sequence[EndReason] | None, most: int | None
) -> list[StoredMemory]:
    """OFFSET 0 keeps the look-ups within the loop, each by its index: see _INDEXED."""
    is_link = "(%(reasons)s::text[] IS NULL OR {}.closed_reason = ANY(%(reasons)s))"
    rows = await conn.execute(
        f"""
        WITH RECURSIVE chain AS (
          SELECT m.id, m.replaced_by, m.closed_reason FROM memories m WHERE {_THREAD} AND m.id = %(id)s
          UNION SELECT m.id, m.replaced_by, m.closed_reason FROM chain c CROSS JOIN LATERAL (
            (SELECT * FROM memories m WHERE m.replaced_by = c.id AND m.tenant IS NOT DISTINCT FROM %(tenant)s
              AND m.thread_id IS NOT DISTINCT FROM %(thread)s AND {is_link.format("m")} OFFSET 0)
            UNION ALL
            (SELECT * FROM memories m WHERE {_THREAD} AND m.id = c.replaced_by AND {is_link.format("c")} OFFSET 0)
          ) m)
        SELECT {FIELDS} FROM (SELECT id FROM chain LIMIT %(most)s::int) c
        CROSS JOIN LATERAL (SELECT * FROM memories m WHERE {_THREAD} AND m.id = c.id OFFSET 0) m
        ORDER BY m.valid_from, m.seq, m.id""".encode(),
        {
            **{"tenant": tenant, "thread": thread, "id": memory_id, "most": most},
            "reasons": None if reasons is None else list(reasons),
        },
    )
    return [stored_memory(row) for row in await rows.fetchall()]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A question to the user (M5). memory_id: the memory that waits; against: those it contradicts."""

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
    """Questions that wait for an answer, or all of them with `answered`, or one by its id; oldest first."""
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
    """How far a conversation's turns were looked at by one stage of the extraction. error: of the last look."""

    through_seq: int
    extractor: str
    found: int
    stored: int
    error: str | None
    extracted_at: datetime


async def turns_of_forgotten(conn: Connection, tenant: str, thread: str, event_ids: Collection[UUID]) -> set[UUID]:
    """Those of the turns from which a memory was taken that is forgotten."""
    rows = await conn.execute(
        "SELECT DISTINCT s ->> 'event_id' FROM memories m, jsonb_array_elements(m.sources) s WHERE m.tenant = %s "
        "AND m.thread_id = %s AND m.status = 'forgotten' AND s ->> 'event_id' = ANY(%s::text[])",
        (tenant, thread, [str(one) for one in event_ids]),
    )
    return {UUID(found) for (found,) in await rows.fetchall()}


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


async def entities_of(
    conn: Connection, tenant: str, thread: str, type_: str | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """Entities with all their columns, most mentioned first."""
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(
        "SELECT type, name, description, attributes, relations, sources, mention_count, first_seen_at, last_seen_at "
        "FROM entities WHERE tenant = %(tenant)s AND thread_id = %(thread)s "
        "AND (%(type)s::text IS NULL OR type = %(type)s) "
        'ORDER BY mention_count DESC, last_seen_at DESC, type, name_key COLLATE "C" LIMIT %(limit)s',
        {"tenant": tenant, "thread": thread, "type": type_, "limit": limit},
    )
    return await cursor.fetchall()


async def _memories(conn: Connection, where: str, params: dict[str, Any]) -> list[StoredMemory]:
    rows = await conn.execute(f"SELECT {FIELDS} FROM memories m WHERE {where}".encode(), params)
    return [stored_memory(row) for row in await rows.fetchall()]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a memory's policy looks at. thread may be a shadow's. importance: as it was at importance_at.

    confirmed_at: when it was last said, or when turnlog learned of that: imported conversations may be old.
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


_STANDING = """
SELECT tenant, thread_id, user_id, id, status, importance, importance_at, confidence, access_count,
  last_accessed_at, greatest(confirmed_at, importance_at), expires_at
FROM memories WHERE status IN ('valid', 'archived')"""


async def standings(conn: Connection) -> AsyncIterator[Standing]:
    """Every memory that holds or is archived, of all tenants, user by user; rows come as they are asked for."""
    async with conn.transaction(), conn.cursor("memory_standings") as cursor:
        cursor.itersize = 2_000
        await cursor.execute(f"{_STANDING} ORDER BY tenant, thread_id, id".encode())
        async for row in cursor:
            yield Standing(*row)


async def standing(conn: Connection, tenant: str, thread: str, ids: Sequence[UUID]) -> list[Standing]:
    rows = await conn.execute(
        f"{_STANDING} AND tenant = %s AND thread_id = %s AND id = ANY(%s) ORDER BY id".encode(),
        (tenant, thread, list(ids)),
    )
    return [Standing(*row) for row in await rows.fetchall()]
