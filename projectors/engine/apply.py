"""Applies a batch in one transaction. If an event cannot be applied, applies the events singly, and parks that one
and the later events of its thread."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import replace

import psycopg
from psycopg.errors import ProgramLimitExceeded
from pydantic import ValidationError

from turnlog.events.contracts import CONTRACTS
from turnlog.events.errors import InvalidEvent
from turnlog.projectors.engine import duplicates, parking, positions
from turnlog.projectors.engine.changes import Change
from turnlog.projectors.engine.incoming import Incoming
from turnlog.projectors.engine.parking import BEHIND, Parked, Place
from turnlog.projectors.engine.positions import Positions
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection, perform

NOTHING: Mapping[str, Set[int]] = {}

TOGETHER_UP_TO = 16
# From this batch size in bytes on, changes are computed in a thread, so that the event loop stays free.
LARGE_BATCH_BYTES = 256 * 1024

# Errors that an event's content causes; all others (lost connection, missing table, full disk) are retried.
POISON = (
    psycopg.DataError,
    psycopg.IntegrityError,
    ProgramLimitExceeded,
    InvalidEvent,
    ValidationError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


async def apply_batch(
    conn: Connection,
    projections: Sequence[Projection],
    batch: Sequence[Incoming],
    at: Positions,
    through: int,
    dropped: Mapping[str, Set[int]] = NOTHING,
    as_read: bool = False,
) -> Positions:
    """Applies each projection's unseen events and moves all positions to `through`; returns the new positions.

    dropped: the sequences to skip, by projection. as_read: True drops events whose id is already stored at an earlier
    sequence.

    Raises PositionMoved and psycopg errors; after an error nothing is changed.
    """
    try:
        await _apply(conn, projections, batch, at, through, dropped, as_read, careful=False)
    except POISON:
        await _apply(conn, projections, batch, at, through, dropped, as_read, careful=True)
    return replace(at, at={name: max(position, through) for name, position in at.at.items()})


async def _apply(
    conn: Connection,
    projections: Sequence[Projection],
    batch: Sequence[Incoming],
    at: Positions,
    through: int,
    dropped: Mapping[str, Set[int]],
    as_read: bool,
    careful: bool,
) -> None:
    together = not careful and len(batch) <= TOGETHER_UP_TO
    async with _pipelined(conn) if together else conn.transaction():
        last = batch[-1].recorded if batch and batch[-1].seq == through else None
        moved = await positions.move(conn, at, through, last.stored_at if last else None)
        parked_now = await parking.ask_places(conn, at.build, at.partition, {message.place for message in batch})
        noted = await duplicates.note_ids(conn, batch, at.partition) if as_read else None
        await positions.assert_were(moved, at)
        waiting = await parking.places(parked_now, at.at)
        if noted is not None:
            batch = await duplicates.only_first(conn, noted, batch, at.partition)
        types = {message.type for message in batch}
        for projection in projections:
            done, out = at.at[projection.name], dropped.get(projection.name, frozenset())
            wanted = {type_ for type_ in types if concerns(projection, type_)}
            mine = [i for i in batch if i.type in wanted and i.seq > done and i.seq not in out]
            act = apply_events if careful else _all_at_once
            parked = await act(conn, projection, mine, waiting[projection.name])
            await parking.park(conn, projection.name, at, parked)


@contextlib.asynccontextmanager
async def _pipelined(conn: Connection) -> AsyncIterator[None]:
    """Opens a transaction whose statements are pipelined, because waiting for each reply takes longer than executing
    it.

    BEGIN and COMMIT are part of the pipeline. After an error Postgres skips the remaining statements, even a ROLLBACK,
    so the rollback is sent after the pipeline. COPY, which large batches use, and applying event by event cannot be
    pipelined.
    """
    try:
        async with conn.pipeline():
            await conn.execute("BEGIN")
            yield
            await conn.execute("COMMIT")
    except BaseException:
        if not conn.closed:
            await conn.rollback()
        raise


def concerns(projection: Projection, type_: str) -> bool:
    """Returns whether the projection handles the event type; True for an unknown type."""
    return type_ in projection.handles or type_ not in CONTRACTS


def split(batch: Sequence[Incoming], waiting: set[Place]) -> tuple[list[Incoming], list[Parked]]:
    """Returns the events to apply and the events to park: undecodable events and all later events of their threads."""
    blocked = set(waiting)
    good: list[Incoming] = []
    parked: list[Parked] = []
    for message in batch:
        if message.place in blocked:
            parked.append(Parked(message, "behind", message.error or BEHIND))
        elif message.recorded is None:
            blocked.add(message.place)
            parked.append(Parked(message, "poison", message.error))
        else:
            good.append(message)
    return good, parked


async def _all_at_once(
    conn: Connection, projection: Projection, batch: Sequence[Incoming], waiting: set[Place]
) -> list[Parked]:
    good, parked = split(batch, waiting)
    if good:
        await perform(conn, await _changes(projection, good))
    return parked


async def _changes(projection: Projection, batch: Sequence[Incoming]) -> list[Change]:
    events = [message.recorded for message in batch if message.recorded]
    if sum(message.size for message in batch) < LARGE_BATCH_BYTES:
        return projection.changes(events)
    return await asyncio.to_thread(projection.changes, events)


async def apply_events(
    conn: Connection, projection: Projection, batch: Sequence[Incoming], waiting: set[Place]
) -> list[Parked]:
    """Applies the events one by one, each in a savepoint, and returns the events to park. The caller owns the
    transaction."""
    blocked = set(waiting)
    parked: list[Parked] = []
    for message in batch:
        try:
            async with conn.transaction():
                to_park = await _all_at_once(conn, projection, [message], blocked)
        except POISON as error:
            to_park = [Parked(message, "poison", f"{type(error).__name__}: {error}")]
        if to_park:
            blocked.add(message.place)
            parked += to_park
    return parked
