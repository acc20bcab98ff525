"""Drops events whose id is already stored, even long after JetStream's deduplication window.

The table event_ids has the first sequence of each id in its thread. The first reader of an event inserts its id (the
engine does so in the transaction that writes its rows). Every reader of a partition reads in order, so the result
depends only on the log.
"""

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from turnlog.events.publish import Key
from turnlog.projectors.engine.incoming import Incoming
from turnlog.projectors.engine.writer import Connection, array_literal

_BATCH = "unnest(%(ids)s::uuid[], %(hashes)s::uuid[], %(seqs)s::bigint[]) AS new (id, hash, seq)"
_WANTED = "unnest(%(ids)s::uuid[], %(hashes)s::uuid[]) WITH ORDINALITY AS wanted (id, hash, number)"
# Inserts in the batch's order, so that the first of two equal ids is kept.
_NOTE = f"""
INSERT INTO event_ids (partition, event_id, thread_hash, seq) SELECT %(partition)s, new.* FROM {_BATCH}
WHERE NOT EXISTS (SELECT FROM event_ids_of_any_thread o WHERE o.partition = %(partition)s AND o.event_id = new.id)
ORDER BY new.seq ON CONFLICT DO NOTHING RETURNING seq"""
_FIRST_ONES = f"""
SELECT new.seq FROM {_BATCH} JOIN event_ids o
ON o.partition = %(partition)s AND o.event_id = new.id AND o.thread_hash = new.hash AND o.seq = new.seq
UNION ALL SELECT new.seq FROM {_BATCH} JOIN event_ids_of_any_thread o
ON o.partition = %(partition)s AND o.event_id = new.id AND o.seq = new.seq"""
_FIRST_SEQS = f"""
SELECT wanted.number, o.seq FROM {_WANTED} JOIN event_ids o
ON o.partition = ANY(%(partitions)s) AND o.event_id = wanted.id AND o.thread_hash = wanted.hash
UNION ALL SELECT wanted.number, o.seq FROM {_WANTED} JOIN event_ids_of_any_thread o
ON o.partition = ANY(%(partitions)s) AND o.event_id = wanted.id"""


async def without_duplicates(conn: Connection, batch: Sequence[Incoming], partition: int) -> list[Incoming]:
    """Returns the batch without the events whose id occurs earlier in their thread.

    A rebuild reads events whose ids are mostly noted already, and a look-up is cheaper than noting them again.
    """
    first = await _first_ones(conn, batch, partition)
    return (
        first
        if len(first) == len(batch)
        else await only_first(conn, await note_ids(conn, batch, partition), batch, partition)
    )


async def note_ids(conn: Connection, batch: Sequence[Incoming], partition: int) -> AsyncCursor[TupleRow]:
    """Inserts the batch's ids in log order, so that two readers cannot deadlock, and returns the cursor with the new
    ones."""
    return await conn.execute(_NOTE, _values(batch, partition))


async def only_first(
    conn: Connection, noted: AsyncCursor[TupleRow], batch: Sequence[Incoming], partition: int
) -> list[Incoming]:
    """Returns the batch without duplicates, as `without_duplicates` does, after note_ids. noted: the result of
    note_ids."""
    if len(await noted.fetchall()) == sum(message.recorded is not None for message in batch):
        return list(batch)
    return await _first_ones(conn, batch, partition)


async def _first_ones(conn: Connection, batch: Sequence[Incoming], partition: int) -> list[Incoming]:
    """Returns the events whose noted sequence is their own, and the events that cannot be decoded."""
    rows = await conn.execute(_FIRST_ONES, _values(batch, partition))
    first = {seq for (seq,) in await rows.fetchall()}
    return [message for message in batch if message.recorded is None or message.seq in first]


async def first_seqs(conn: Connection, partitions: Sequence[int], keys: Collection[Key]) -> dict[Key, int]:
    """Returns the first sequence of each of these events; events that no projection has read are left out."""
    hashes = array_literal(thread_hash(key.tenant, key.thread_token) for key in keys)
    values = {"partitions": list(partitions), "ids": array_literal(key.id for key in keys), "hashes": hashes}
    seqs: dict[int, int] = dict(await (await conn.execute(_FIRST_SEQS, values)).fetchall())
    return {key: seqs[number] for number, key in enumerate(keys, 1) if number in seqs}


def _values(batch: Sequence[Incoming], partition: int) -> dict[str, object]:
    decoded = [(message, message.recorded.event.id) for message in batch if message.recorded]
    return {
        "partition": partition,
        "ids": array_literal(event_id for _, event_id in decoded),
        "hashes": array_literal(thread_hash(*message.place) for message, _ in decoded),
        "seqs": array_literal(message.seq for message, _ in decoded),
    }


@lru_cache(maxsize=4_096)
def thread_hash(tenant: str, token: str) -> str:
    """Returns a hash of tenant and thread token as 32 hexadecimal digits, so that the table contains no names to
    erase."""
    return hashlib.sha256(f"{tenant}.{token}".encode()).hexdigest()[:32]
