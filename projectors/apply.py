"""Applying a batch: everything in one transaction, or, when an event proves poison, event by event with parking."""

import contextlib
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import psycopg
from psycopg.errors import ProgramLimitExceeded
from pydantic import ValidationError

from turnlog.events.codec import CONTRACTS
from turnlog.projectors import parking, positions
from turnlog.projectors.incoming import Incoming
from turnlog.projectors.parking import BEHIND, Parked, Place
from turnlog.projectors.positions import Positions
from turnlog.projectors.projection import Projection
from turnlog.projectors.writer import Connection, perform

NOTHING: Mapping[str, Set[int]] = {}

TOGETHER_UP_TO = 16

# Errors that an event's content causes; all others (lost connection, missing table, full disk) are retried.
POISON = (
    psycopg.DataError,
    psycopg.IntegrityError,
    ProgramLimitExceeded,
    ValidationError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
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
) -> Positions:
    """Applies what each projection has not seen yet and moves all to `through`; returns the new positions.

    dropped: projection → sequences to pass over.

    Raises PositionMoved and psycopg errors; then nothing has happened.
    """
    try:
        await _apply(conn, projections, batch, at, through, dropped, careful=False)
    except POISON:
        await _apply(conn, projections, batch, at, through, dropped, careful=True)
    return replace(at, at={name: max(position, through) for name, position in at.at.items()})


async def _apply(
    conn: Connection,
    projections: Sequence[Projection],
    batch: Sequence[Incoming],
    at: Positions,
    through: int,
    dropped: Mapping[str, Set[int]],
    careful: bool,
) -> None:
    async with conn.transaction(), _together(conn, len(batch), careful):
        await positions.lock(conn, at)
        waiting = await parking.parked_places(conn, at.at, at.build, at.partition)
        for projection in projections:
            done, out = at.at[projection.name], dropped.get(projection.name, frozenset())
            mine = [i for i in batch if i.seq > done and i.seq not in out and concerns(projection, i)]
            act = apply_events if careful else _all_at_once
            parked = await act(conn, projection, mine, waiting[projection.name])
            await parking.park(conn, projection.name, at, parked)
        await positions.move(conn, at, through)


def _together(conn: Connection, events: int, careful: bool) -> AbstractAsyncContextManager[object]:
    """A small batch's statements go to Postgres together: waiting for each would take longer than doing them.

    A pipeline cannot hold a COPY, which large batches use, nor the savepoints of careful applying.
    """
    return contextlib.nullcontext() if careful or events > TOGETHER_UP_TO else conn.pipeline()


def concerns(projection: Projection, one: Incoming) -> bool:
    """Whether the projection handles the event's type, or might if it knew it."""
    return one.type in projection.handles or one.type not in CONTRACTS


def split(batch: Sequence[Incoming], waiting: set[Place]) -> tuple[list[Incoming], list[Parked]]:
    """What can be applied, and what is parked: undecodable events and all that come behind a parked one."""
    blocked = set(waiting)
    good: list[Incoming] = []
    parked: list[Parked] = []
    for one in batch:
        if one.place in blocked:
            parked.append(Parked(one, "behind", one.error or BEHIND))
        elif one.recorded is None:
            blocked.add(one.place)
            parked.append(Parked(one, "poison", one.error))
        else:
            good.append(one)
    return good, parked


async def _all_at_once(
    conn: Connection, projection: Projection, batch: Sequence[Incoming], waiting: set[Place]
) -> list[Parked]:
    good, parked = split(batch, waiting)
    if good:
        await perform(conn, projection.changes([i.recorded for i in good if i.recorded]))
    return parked


async def apply_events(
    conn: Connection, projection: Projection, batch: Sequence[Incoming], waiting: set[Place]
) -> list[Parked]:
    """Event by event, each in a savepoint; returns what must be parked. The caller owns the transaction."""
    blocked = set(waiting)
    parked: list[Parked] = []
    for one in batch:
        try:
            async with conn.transaction():
                found = await _all_at_once(conn, projection, [one], blocked)
        except POISON as error:
            found = [Parked(one, "poison", f"{type(error).__name__}: {error}")]
        if found:
            blocked.add(one.place)
            parked += found
    return parked
