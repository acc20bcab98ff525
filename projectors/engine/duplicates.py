"""Drops events whose id is already stored, also long after JetStream's dedup window (L4).

The first sequence of an id is a fact of the log, so the first reader of an event fills this table (the engine does so
in the transaction of its rows); every reader of a partition reads in order and gets the same result.
"""

from collections.abc import Sequence
from uuid import UUID

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from turnlog.projectors.engine.incoming import Incoming
from turnlog.projectors.engine.writer import Connection, array_literal


async def without_duplicates(conn: Connection, batch: Sequence[Incoming], partition: int) -> list[Incoming]:
    """Returns the batch without the events whose id occurs earlier in the partition."""
    return await only_first(conn, await note_ids(conn, batch, partition), batch, partition)


async def note_ids(conn: Connection, batch: Sequence[Incoming], partition: int) -> AsyncCursor[TupleRow]:
    """Inserts the batch's ids in log order, so that two readers cannot deadlock."""
    return await conn.execute(
        "INSERT INTO event_ids (partition, event_id, seq) SELECT %s, * FROM unnest(%s::uuid[], %s::bigint[]) "
        "ON CONFLICT DO NOTHING RETURNING seq",
        (partition, array_literal(_ids(batch)), array_literal(i.seq for i in batch if i.recorded)),
    )


async def only_first(
    conn: Connection, noted: AsyncCursor[TupleRow], batch: Sequence[Incoming], partition: int
) -> list[Incoming]:
    """The result of `without_duplicates` for a batch whose ids were noted."""
    ids = _ids(batch)
    if len(await noted.fetchall()) == len(ids):
        return list(batch)
    rows = await conn.execute(
        "SELECT event_id, seq FROM event_ids WHERE partition = %s AND event_id = ANY(%s::uuid[])",
        (partition, array_literal(ids)),
    )
    first: dict[UUID, int] = dict(await rows.fetchall())
    return [i for i in batch if i.recorded is None or first[i.recorded.event.id] == i.seq]


def _ids(batch: Sequence[Incoming]) -> list[UUID]:
    return [i.recorded.event.id for i in batch if i.recorded]


async def first_seq(conn: Connection, partition: int, event_id: UUID) -> int | None:
    """The first sequence of an event id; None if no projection has read that far."""
    rows = await conn.execute("SELECT seq FROM event_ids WHERE partition = %s AND event_id = %s", (partition, event_id))
    found = await rows.fetchone()
    return int(found[0]) if found else None
