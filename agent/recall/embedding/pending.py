"""Finds chunks and memories without a vector of the present model, with an index instead of a scan of the table."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.events.contracts import ERASED
from turnlog.projectors.engine.writer import Connection

# A thread of several people keeps empty turns of an erased user. A vector of such a turn would be useless, and its
# event would create a new key for the erased user.
_NOT_ERASED = f"chunk <> '{ERASED}'"
_NO_VECTOR, _VECTOR_OF = "embedding IS NULL", "embedding_model = %(replaced)s"

# Reads one entry of the index per thread, not one per chunk.
_NEWEST_THREADS = """
WITH RECURSIVE lacking AS (
  (SELECT tenant, thread_id FROM memory_vectors WHERE {where} ORDER BY tenant, thread_id LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.thread_id FROM lacking l CROSS JOIN LATERAL (
    SELECT tenant, thread_id FROM memory_vectors WHERE {where} AND (tenant, thread_id) > (l.tenant, l.thread_id)
    ORDER BY tenant, thread_id LIMIT 1) n)
SELECT l.tenant, l.thread_id FROM lacking l LEFT JOIN thread_activity a USING (tenant, thread_id)
ORDER BY a.last_active_at DESC NULLS LAST, l.tenant, l.thread_id LIMIT %(limit)s"""

_CHUNKS_OF_THREADS = """
SELECT v.tenant, v.thread_id, v.user_id, v.id, v.index_text
FROM unnest(%(tenants)s::text[], %(threads)s::text[]) WITH ORDINALITY t (tenant, thread_id, place)
CROSS JOIN LATERAL (
  SELECT * FROM memory_vectors WHERE tenant = t.tenant AND thread_id = t.thread_id AND {where}
  ORDER BY seq DESC, piece LIMIT %(limit)s) v
ORDER BY t.place, v.seq DESC, v.piece LIMIT %(limit)s"""

_REPLACED_MODELS = """
WITH RECURSIVE models AS (
  (SELECT embedding_model AS name FROM {table} WHERE embedding_model IS NOT NULL ORDER BY 1 LIMIT 1)
  UNION ALL
  SELECT (SELECT embedding_model FROM {table} WHERE embedding_model > m.name ORDER BY 1 LIMIT 1)
  FROM models m WHERE m.name IS NOT NULL)
SELECT name FROM models WHERE name <> %s"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A chunk or memory without a vector. text: the text to embed."""

    tenant: str
    thread: str
    user: str | None
    id: str
    text: str

    @property
    def text_hash(self) -> bytes:
        return hashlib.sha256(self.text.encode()).digest()


async def pending_chunks(
    conn: Connection,
    model: str,
    limit: int,
    stuck: Collection[str] = (),
    tenant: str | None = None,
    threads: Sequence[str] | None = None,
) -> list[Pending]:
    """Returns chunks without a vector of this model: the most recently active threads first, in each thread the newest
    chunks first.

    Chunks with a vector of another model come after all chunks without a vector.

    stuck: ids to leave out, because the events of their threads are parked and cannot set vectors. threads: read only
    these threads of the tenant, in this order.
    """
    for where, params in await _lacking(conn, model):
        values = {**params, "stuck": list(stuck), "limit": limit}
        where = f"{where} AND {_NOT_ERASED} AND id <> ALL(%(stuck)s)"
        places = [(tenant, thread) for thread in threads] if threads is not None else await _newest(conn, where, values)
        values |= {"tenants": [place[0] for place in places], "threads": [place[1] for place in places]}
        rows = await conn.execute(_CHUNKS_OF_THREADS.format(where=where).encode(), values)
        if chunks := await rows.fetchall():
            return [Pending(*row) for row in chunks]
    return []


async def _newest(conn: Connection, where: str, values: dict[str, Any]) -> list[tuple[str, str]]:
    rows = await conn.execute(_NEWEST_THREADS.format(where=where).encode(), values)
    return [(tenant, thread) for tenant, thread in await rows.fetchall()]


async def _lacking(conn: Connection, model: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns conditions that together match every chunk without a vector of the model, each with its values."""
    replaced = await replaced_models(conn, "memory_vectors", model)
    return [(_NO_VECTOR, {}), *((_VECTOR_OF, {"replaced": name}) for name in replaced)]


async def replaced_models(conn: Connection, table: str, model: str) -> list[str]:
    """Returns the other models that made vectors in the table."""
    rows = await conn.execute(_REPLACED_MODELS.format(table=table).encode(), (model,))
    return [name for (name,) in await rows.fetchall()]


# Sorted in the order of the index, so that the filter on erased chunks reads only as many rows as are counted.
_COUNT = """
SELECT count(*) FROM (
  SELECT FROM memory_vectors WHERE {where} ORDER BY tenant, thread_id LIMIT %(limit)s) lacking"""


async def pending_count(
    conn: Connection,
    model: str | None,
    at_most: int | None = None,
    tenant: str | None = None,
    threads: Sequence[str] | None = None,
) -> int:
    """Returns the number of chunks without a vector of the model. model: None counts chunks without any vector.
    at_most: the number at which to stop counting.

    threads: count only these threads of the tenant.
    """
    conditions = [(_NO_VECTOR, {})] if model is None else await _lacking(conn, model)
    of_threads = "" if threads is None else " AND tenant = %(tenant)s AND thread_id = ANY(%(threads)s)"
    total = 0
    for where, params in conditions:
        query = _COUNT.format(where=f"{where} AND {_NOT_ERASED}{of_threads}")
        limit = None if at_most is None else at_most - total
        values = {**params, "limit": limit, "tenant": tenant, "threads": None if threads is None else list(threads)}
        [(count,)] = await (await conn.execute(query.encode(), values)).fetchall()
        total += count
    return total


async def pending_memories(conn: Connection, model: str, limit: int, stuck: Collection[str] = ()) -> list[Pending]:
    """Returns memories without a vector of this model, oldest first, so that later memories are compared with earlier
    ones.

    stuck: ids to leave out, because the events of their threads are parked and cannot set vectors.
    """
    for where, params in await _memories_lacking(conn, model):
        rows = await conn.execute(
            f"SELECT tenant, thread_id, user_id, id::text, content FROM memories WHERE {where} "
            "AND status <> 'forgotten' AND id <> ALL(%(stuck)s::uuid[]) ORDER BY seq, id LIMIT %(limit)s".encode(),
            {**params, "limit": limit, "stuck": list(stuck)},
        )
        if memories := await rows.fetchall():
            return [Pending(*row) for row in memories]
    return []


async def pending_memories_count(conn: Connection, model: str, at_most: int) -> int:
    total = 0
    for where, params in await _memories_lacking(conn, model):
        rows = f"SELECT FROM memories WHERE {where} AND status <> 'forgotten' LIMIT %(limit)s"
        query = f"SELECT count(*) FROM ({rows}) lacking"
        [(count,)] = await (await conn.execute(query.encode(), {**params, "limit": at_most - total})).fetchall()
        total += count
    return total


async def _memories_lacking(conn: Connection, model: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns conditions that together match every memory without a vector of the model, each with its values."""
    replaced = await replaced_models(conn, "memories", model)
    other = ("embedding_model = ANY(%(replaced)s)", {"replaced": replaced})
    return [("embedding IS NULL", {}), *([other] if replaced else [])]
