"""Rebuilds a single thread in place, and retries or drops its parked events."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.log import Log
from turnlog.events.stored import Stored
from turnlog.events.subjects import STORED_PREFIX, tenant_filter, thread_filters, thread_token
from turnlog.projectors.engine import parking, positions
from turnlog.projectors.engine.apply import apply_events, concerns
from turnlog.projectors.engine.changes import DeleteThread
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.duplicates import without_duplicates
from turnlog.projectors.engine.incoming import Incoming, incoming, partition_of
from turnlog.projectors.engine.positions import LIVE, Positions
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection, perform
from turnlog.projectors.rebuild.rebuild import Rebuilt

Place = tuple[str, str]


class NotPerThread(TurnlogError):
    """The projection sums over threads, so a single thread cannot be rebuilt alone."""

    code = "not-per-thread"


@dataclass(frozen=True, slots=True)
class Retried:
    """The sequences that were applied and the sequences that are still parked, in ascending order."""

    applied: tuple[int, ...]
    parked: tuple[int, ...]


async def rebuild_thread(log: Log, database_url: str, projection: Projection, tenant: str, thread: str) -> Rebuilt:
    """Removes the thread's rows and applies its events again, in one transaction, for which the partition's other
    threads wait.

    Raises NotFound if the log has no such thread, and NotPerThread.
    """
    if not projection.per_thread:
        raise NotPerThread(f"{projection.name} sums over all threads; run `turnlog rebuild {projection.name}`")
    started, events, place = time.perf_counter(), 0, (tenant, thread_token(thread))
    filters = thread_filters(tenant, thread)
    partition = await _partition(log, place, filters)
    async with await connect(database_url) as conn, conn.transaction():
        at = await _locked(conn, projection, partition)
        await perform(conn, [DeleteThread(projection.tables, tenant, thread)])
        await _unpark(conn, projection, place)
        dropped = await _seqs(conn, projection, place, "dropped")
        async for batch in _batches(log.read(filters, 1, at.lowest)):
            decoded = [incoming(s, log.signer) for s in batch if s.seq not in dropped]
            mine = [message for message in decoded if _is_of(message, thread, place)]
            events += len(mine)
            await _apply(conn, projection, await without_duplicates(conn, mine, partition), at)
    return Rebuilt(projection.name, events, time.perf_counter() - started)


async def rebuild_tenant(
    log: Log, database_url: str, projection: Projection, tenant: str, from_seq: int = 1
) -> Rebuilt:
    """Rebuilds a tenant's threads one by one, each from its beginning. from_seq: rebuilds only threads with an event at
    or after this sequence. Raises NotFound, NotPerThread."""
    started, events = time.perf_counter(), 0
    threads = await _threads(log, tenant, from_seq)
    if not threads:
        after = f" with an event from sequence {from_seq} on" if from_seq > 1 else ""
        raise NotFound(f"the log has no tenant {tenant!r}{after}")
    for thread in threads:
        events += (await rebuild_thread(log, database_url, projection, tenant, thread)).events
    return Rebuilt(projection.name, events, time.perf_counter() - started)


async def _threads(log: Log, tenant: str, from_seq: int) -> list[str]:
    threads: dict[str, None] = {}
    async for stored in log.read([tenant_filter(tenant)], from_seq, await log.head()):
        if (known := incoming(stored).recorded) is not None:
            threads.setdefault(known.event.thread)
    return list(threads)


async def retry(log: Log, database_url: str, projection: Projection, place: Place) -> Retried:
    """Applies a thread's parked events in order; an event that fails again stays parked with the events after it.
    Parked events that the log no longer has are forgotten. Raises NotFound if the log has no such thread."""
    partition = await _partition(log, place)
    async with await connect(database_url) as conn, conn.transaction():
        at = await _locked(conn, projection, partition)
        return await _retry(log, conn, projection, place, at)


async def drop(log: Log, database_url: str, projection: Projection, seq: int) -> Retried:
    """Gives up one parked event (its status becomes dropped) and applies the events that waited for it. Raises
    NotFound."""
    async with await connect(database_url) as conn, conn.transaction():
        rows = await conn.execute(
            "SELECT partition, tenant, thread_token FROM dead_letters WHERE projection = %s AND build = 'live' "
            "AND seq = %s AND status = 'parked'",
            (projection.name, seq),
        )
        row = await rows.fetchone()
        if row is None:
            raise NotFound(f"{projection.name} has no parked event at sequence {seq}; see `turnlog dead-letters list`")
        at = await _locked(conn, projection, row[0])
        await parking.drop(conn, projection.name, seq)
        return await _retry(log, conn, projection, (row[1], row[2]), at)


async def _retry(log: Log, conn: Connection, projection: Projection, place: Place, at: Positions) -> Retried:
    seqs = sorted(await _seqs(conn, projection, place, "parked"))
    await _unpark(conn, projection, place)
    batch: list[Incoming] = []
    for seq in seqs:
        with contextlib.suppress(NotFound):  # it was deleted or overwritten since
            batch.append(incoming(await log.stored(seq), log.signer))
    still = await _apply(conn, projection, await without_duplicates(conn, batch, at.partition), at)
    return Retried(tuple(m.seq for m in batch if m.seq not in still), tuple(sorted(still)))


async def _apply(conn: Connection, projection: Projection, batch: Sequence[Incoming], at: Positions) -> set[int]:
    places = {message.place for message in batch}
    waiting = await parking.parked_places(conn, [projection.name], LIVE, at.partition, places)
    mine = [message for message in batch if concerns(projection, message.type)]
    parked = await apply_events(conn, projection, mine, waiting[projection.name])
    await parking.park(conn, projection.name, at, parked)
    return {p.incoming.seq for p in parked}


async def _locked(conn: Connection, projection: Projection, partition: int) -> Positions:
    at = await positions.load(conn, [projection], LIVE, partition)
    await conn.execute(
        "SELECT FROM projection_positions WHERE projection = %s AND build = 'live' AND partition = %s FOR UPDATE",
        (projection.name, partition),
    )
    return await positions.load(conn, [projection], at.build, partition)


async def _seqs(conn: Connection, projection: Projection, place: Place, status: str) -> set[int]:
    rows = await conn.execute(
        "SELECT seq FROM dead_letters WHERE projection = %s AND build = 'live' AND tenant = %s "
        "AND thread_token = %s AND status = %s",
        (projection.name, *place, status),
    )
    return {seq for (seq,) in await rows.fetchall()}


async def _unpark(conn: Connection, projection: Projection, place: Place) -> None:
    await conn.execute(
        "DELETE FROM dead_letters WHERE projection = %s AND build = 'live' AND tenant = %s AND thread_token = %s "
        "AND status = 'parked'",
        (projection.name, *place),
    )


def _is_of(message: Incoming, thread: str, place: Place) -> bool:
    return message.place == place if message.recorded is None else message.recorded.event.thread == thread


async def _batches(stored: AsyncIterator[Stored], size: int = 2_000) -> AsyncIterator[list[Stored]]:
    batch: list[Stored] = []
    async for message in stored:
        batch.append(message)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def _partition(log: Log, place: Place, filters: Sequence[str] = ()) -> int:
    """Returns the thread's partition. filters: subject filters of the thread; the default matches the events of its
    token."""
    tenant, token = place
    async for stored in log.read(filters or [f"{STORED_PREFIX}.*.{tenant}.{token}.*"], 1, await log.head()):
        return partition_of(stored)
    raise NotFound(f"the log has no thread {place[1]!r} of tenant {place[0]!r}")
