"""Parks events: an event that cannot be applied (poison) and the later events of its thread; other threads continue."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncCursor
from psycopg.rows import TupleRow, dict_row

from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import thread_token
from turnlog.projectors.engine.incoming import Incoming
from turnlog.projectors.engine.positions import Positions
from turnlog.projectors.engine.writer import Connection, array_literal

Place = tuple[str, str]
BEHIND = "an earlier event of this thread is parked"


class ThreadParked(TurnlogError):
    """An event of the thread could not be projected; later events wait for it, so the state is incomplete."""

    code = "thread-parked"


@dataclass(frozen=True, slots=True)
class Parked:
    incoming: Incoming
    reason: str
    error: str


async def parked_places(
    conn: Connection, names: Iterable[str], build: str, partition: int, asked: Collection[Place]
) -> dict[str, set[Place]]:
    """Returns, for each projection, the (tenant, thread token) pairs in `asked` whose new events must wait."""
    return await places(await ask_places(conn, build, partition, asked), names)


async def ask_places(conn: Connection, build: str, partition: int, asked: Collection[Place]) -> AsyncCursor[TupleRow]:
    """Sends the query of `parked_places`; the other statements of a pipeline need not wait for its result.

    It must follow the statement that locks the positions, because that statement itself does not see events that were
    parked while it waited. It reads only poison events of these threads, because the other parked events may be very
    many.
    """
    tenants, tokens = zip(*set(asked), strict=True) if asked else ((), ())
    return await conn.execute(
        "SELECT DISTINCT d.projection, d.tenant, d.thread_token FROM unnest(%s::text[], %s::text[]) a (tenant, token) "
        "JOIN dead_letters d ON d.tenant = a.tenant AND d.thread_token = a.token AND d.build = %s AND d.partition = %s "
        "AND d.status = 'parked' AND d.reason = 'poison'",
        (array_literal(tenants), array_literal(tokens), build, partition),
    )


async def places(asked: AsyncCursor[TupleRow], names: Iterable[str]) -> dict[str, set[Place]]:
    parked: dict[str, set[Place]] = {name: set() for name in names}
    for name, tenant, token in await asked.fetchall():
        if name in parked:
            parked[name].add((tenant, token))
    return parked


async def first_parked(conn: Connection, names: Iterable[str], tenant: str, thread: str, since: int = 0) -> str | None:
    """Returns "sequence: error" of the thread's first event from `since` on that one of the projections has parked."""
    rows = await conn.execute(
        "SELECT seq || ': ' || error FROM dead_letters WHERE tenant = %s AND thread_token = %s AND build = 'live' "
        "AND status = 'parked' AND projection = ANY(%s) AND seq >= %s ORDER BY seq LIMIT 1",
        (tenant, thread_token(thread), list(names), since),
    )
    row = await rows.fetchone()
    return row[0] if row else None


def refuse_parked(thread: str, parked: str | None) -> None:
    """Raises ThreadParked if `parked` is not None. parked: the result of first_parked."""
    if parked is not None:
        raise ThreadParked(
            f"an event of thread {thread!r} could not be projected ({parked}), and later ones wait behind it; "
            "`turnlog dead-letters list` shows it, and `retry` or `drop` lets the thread go on"
        )


async def dropped_seqs(conn: Connection, names: Iterable[str], partition: int) -> dict[str, set[int]]:
    """Returns, for each projection, the sequences that an operator dropped; a rebuild skips them too."""
    seqs: dict[str, set[int]] = {name: set() for name in names}
    rows = await conn.execute(
        "SELECT projection, seq FROM dead_letters WHERE projection = ANY(%s) AND build = 'live' AND partition = %s "
        "AND status = 'dropped'",
        (list(seqs), partition),
    )
    for name, seq in await rows.fetchall():
        seqs[name].add(seq)
    return seqs


async def park(conn: Connection, name: str, at: Positions, parked: list[Parked]) -> None:
    if not parked:
        return
    await conn.cursor().executemany(
        "INSERT INTO dead_letters (projection, build, seq, partition, tenant, thread_token, event_type, reason, "
        "error, status) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 'parked') "
        "ON CONFLICT (projection, build, seq) DO UPDATE SET reason = excluded.reason, error = excluded.error, "
        "status = 'parked'",
        [
            (
                name,
                at.build,
                p.incoming.seq,
                at.partition,
                *p.incoming.place,
                p.incoming.type,
                p.reason,
                p.error.replace("\x00", "\ufffd")[:2000],
            )
            for p in parked
        ],
    )


async def unpark(conn: Connection, name: str, seq: int) -> None:
    await conn.execute(
        "DELETE FROM dead_letters WHERE projection = %s AND build = 'live' AND seq = %s AND status = 'parked'",
        (name, seq),
    )


async def drop(conn: Connection, name: str, seq: int) -> None:
    await conn.execute(
        "UPDATE dead_letters SET status = 'dropped' WHERE projection = %s AND build = 'live' AND seq = %s",
        (name, seq),
    )


async def listed(conn: Connection, projection: str | None) -> list[dict[str, Any]]:
    """Returns the parked and dropped events of reactors and live projections, in the order of the log."""
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(
        "SELECT seq, projection, partition, tenant, thread_token, event_type, reason, error, status, parked_at "
        "FROM dead_letters WHERE build = 'live' AND (%(name)s::text IS NULL OR projection = %(name)s) "
        "ORDER BY seq, projection",
        {"name": projection},
    )
    return await cursor.fetchall()
