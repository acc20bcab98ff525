"""The same event id twice is one event, also long after JetStream's dedup window (L4).

The first sequence of an id is a fact of the log, so this table is filled outside the projections' transactions
by whoever reads first; every reader of a partition reads it in order and comes to the same answer.
"""

from collections.abc import Sequence
from uuid import UUID

from turnlog.projectors.incoming import Incoming
from turnlog.projectors.writer import Connection


async def without_duplicates(conn: Connection, batch: Sequence[Incoming], partition: int) -> list[Incoming]:
    """The batch less the events whose id stands earlier in the partition."""
    ids = [i.recorded.event.id for i in batch if i.recorded]
    seqs = [i.seq for i in batch if i.recorded]
    inserted = await conn.execute(
        "INSERT INTO event_ids (partition, event_id, seq) SELECT %s, * FROM unnest(%s::uuid[], %s::bigint[]) "
        "ON CONFLICT DO NOTHING",
        (partition, ids, seqs),
    )
    if inserted.rowcount == len(ids):
        return list(batch)
    rows = await conn.execute(
        "SELECT event_id, seq FROM event_ids WHERE partition = %s AND event_id = ANY(%s)", (partition, ids)
    )
    first: dict[UUID, int] = dict(await rows.fetchall())
    return [i for i in batch if i.recorded is None or first[i.recorded.event.id] == i.seq]


async def first_seq(conn: Connection, partition: int, event_id: UUID) -> int | None:
    """Where the log has an event first, as far as some projection has read; None when none has met it."""
    rows = await conn.execute("SELECT seq FROM event_ids WHERE partition = %s AND event_id = %s", (partition, event_id))
    found = await rows.fetchone()
    return int(found[0]) if found else None
