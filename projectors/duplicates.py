"""The same event id twice is one event, also long after JetStream's dedup window (L4).

The first sequence of an id is a fact of the log, so this table is filled by whoever reads first, the engine in the
transaction of its rows; every reader of a partition reads it in order and comes to the same answer.
"""

from collections.abc import Sequence
from uuid import UUID

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from turnlog.projectors.incoming import Incoming
from turnlog.projectors.writer import Connection


async def without_duplicates(conn: Connection, batch: Sequence[Incoming], partition: int) -> list[Incoming]:
    """The batch less the events whose id stands earlier in the partition."""
    return await only_first(conn, await note_ids(conn, batch, partition), batch, partition)


async def note_ids(conn: Connection, batch: Sequence[Incoming], partition: int) -> AsyncCursor[TupleRow]:
    """Sends the batch's ids to the table, in the order of the log, so that no two readers wait for each other."""
    return await conn.execute(
        "INSERT INTO event_ids (partition, event_id, seq) SELECT %s, * FROM unnest(%s::uuid[], %s::bigint[]) "
        "ON CONFLICT DO NOTHING RETURNING seq",
        (partition, _ids(batch), [i.seq for i in batch if i.recorded]),
    )


async def only_first(
    conn: Connection, noted: AsyncCursor[TupleRow], batch: Sequence[Incoming], partition: int
) -> list[Incoming]:
    """What `without_duplicates` returns, of a batch whose ids were noted."""
    ids = _ids(batch)
    if len(await noted.fetchall()) == len(ids):
        return list(batch)
    rows = await conn.execute(
        "SELECT event_id, seq FROM event_ids WHERE partition = %s AND event_id = ANY(%s)", (partition, ids)
    )
    first: dict[UUID, int] = dict(await rows.fetchall())
    return [i for i in batch if i.recorded is None or first[i.recorded.event.id] == i.seq]


def _ids(batch: Sequence[Incoming]) -> list[UUID]:
    return [i.recorded.event.id for i in batch if i.recorded]


async def first_seq(conn: Connection, partition: int, event_id: UUID) -> int | None:
    """Where the log has an event first, as far as some projection has read; None when none has met it."""
    rows = await conn.execute("SELECT seq FROM event_ids WHERE partition = %s AND event_id = %s", (partition, event_id))
    found = await rows.fetchone()
    return int(found[0]) if found else None
