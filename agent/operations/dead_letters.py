"""Lists, retries and drops dead letters: events that a projection could not apply, later events that wait for them, and
events on which a reactor failed repeatedly."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from turnlog.agent.operations.lag import REACTORS
from turnlog.agent.operations.tailing import Line, line_at
from turnlog.agent.retry_later import at_once
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import EventTooLarge, NotFound
from turnlog.events.stored import Stored
from turnlog.events.subjects import parse_stored
from turnlog.projectors.engine import parking
from turnlog.projectors.engine.apply import POISON
from turnlog.projectors.engine.incoming import Incoming
from turnlog.projectors.engine.positions import LIVE, Positions
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild import replay
from turnlog.projectors.rebuild.replay import Retried as Retried

# Errors that the event itself causes, in projections and reactors. All other errors are temporary: a model, Postgres or
# NATS is unavailable.
EVENT_ERRORS = (*POISON, EventTooLarge)

React = Callable[[str, Stored], Awaitable[None]]
"""Does the work of the named reactor on a stored event. Raises RetryLater, and the errors of the work."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One event of one projection or reactor. status: parked or dropped. reason: `poison`, or `behind` for an event
    that waits for an earlier poison event of its thread."""

    seq: int
    projection: str
    partition: int
    tenant: str
    thread_token: str
    event_type: str
    reason: str
    error: str
    status: str
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class DeadEvent:
    """An event as it is in the log, and the dead letters of the projections and reactors that failed on it."""

    line: Line
    letters: tuple[DeadLetter, ...]


async def list_dead_letters(
    runtime: Runtime, projection: str | None = None, tenant: str | None = None
) -> list[DeadLetter]:
    """Returns parked and dropped events in the order of the log. projection: only those of this projection or reactor.
    tenant: None means every tenant.

    Raises NotFound for an unknown projection.
    """
    if projection is not None and projection not in (*BY_NAME, *REACTORS):
        raise NotFound(
            f"no projection or reactor is named {projection!r}; there are {', '.join((*BY_NAME, *REACTORS))}"
        )
    async with runtime.pool.connection() as conn:
        letters = [DeadLetter(**row) for row in await parking.listed(conn, projection)]
    return [letter for letter in letters if tenant in (None, letter.tenant)]


async def show_dead_letter(runtime: Runtime, seq: int, tenant: str | None = None) -> DeadEvent:
    """Returns an event with its dead letters. tenant: if given, the event must be a dead letter of this tenant, and its
    sealed fields stay closed; if None, it may be any event, and `letters` may be empty. Raises NotFound if there is no
    such event."""
    letters = [letter for letter in await list_dead_letters(runtime, tenant=tenant) if letter.seq == seq]
    if tenant is None:
        return DeadEvent(await line_at(runtime.log, seq), tuple(letters))
    if not letters:
        raise NotFound(f"no event at sequence {seq} is a dead letter")
    return DeadEvent(await line_at(runtime.log, seq, readers=frozenset()), tuple(letters))


async def parked(
    runtime: Runtime, seq: int | None = None, projection: str | None = None, tenant: str | None = None
) -> list[DeadLetter]:
    """Returns the parked events; with `seq`, only the event at this sequence. Raises NotFound if no event is parked
    there."""
    every = await list_dead_letters(runtime, projection, tenant)
    letters = [letter for letter in every if letter.status == "parked" and seq in (None, letter.seq)]
    if seq is not None and not letters:
        raise NotFound(f"no event is parked at sequence {seq}; `turnlog dead-letters list` shows them")
    return letters


async def park_event(conn: Connection, reactor: str, stored: Stored, error: str) -> None:
    """Makes an event a dead letter of a reactor, or updates its error."""
    subject = parse_stored(stored.subject)
    letter = Incoming(stored.seq, (subject.tenant, subject.thread_token), subject.type, None, error)
    at = Positions(LIVE, subject.partition, {})
    await parking.park(conn, reactor, at, [parking.Parked(letter, "poison", error)])


async def retry_dead_letters(
    runtime: Runtime, react: React, seq: int | None = None, projection: str | None = None, tenant: str | None = None
) -> Retried:
    """Applies parked events again in projections, thread by thread in order, then in reactors. seq: only this event, in
    a projection all parked events of its thread. tenant: None means every tenant.

    Raises NotFound, NotNow, and the error of a model or server that is unavailable.
    """
    letters = await parked(runtime, seq, projection, tenant)
    places = sorted(
        {
            (letter.projection, (letter.tenant, letter.thread_token))
            for letter in letters
            if letter.projection in BY_NAME
        }
    )
    done = [await replay.retry(runtime.log, runtime.database_url, BY_NAME[name], place) for name, place in places]
    done += [await _react_again(runtime, react, letter) for letter in letters if letter.projection not in BY_NAME]
    return _together(done)


async def _react_again(runtime: Runtime, react: React, letter: DeadLetter) -> Retried:
    try:
        stored = await runtime.log.stored(letter.seq)
        with at_once():
            await react(letter.projection, stored)
    except NotFound:
        pass  # the event was erased, so there is nothing left to do
    except EVENT_ERRORS as error:
        async with runtime.pool.connection() as conn:
            await park_event(conn, letter.projection, stored, f"{type(error).__name__}: {error}")
        return Retried((), (letter.seq,))
    async with runtime.pool.connection() as conn:
        await parking.unpark(conn, letter.projection, letter.seq)
    return Retried((letter.seq,), ())


async def drop_dead_letter(
    runtime: Runtime, seq: int, projection: str | None = None, tenant: str | None = None
) -> Retried:
    """Drops a parked event, and applies the events that waited for it in a projection. Raises NotFound."""
    done = []
    for letter in await parked(runtime, seq, projection, tenant):
        if letter.projection in BY_NAME:
            done.append(await replay.drop(runtime.log, runtime.database_url, BY_NAME[letter.projection], seq))
        else:
            async with runtime.pool.connection() as conn:
                await parking.drop(conn, letter.projection, seq)
    return _together(done)


def _together(done: Sequence[Retried]) -> Retried:
    return Retried(
        tuple(sorted({seq for retried in done for seq in retried.applied})),
        tuple(sorted({seq for retried in done for seq in retried.parked})),
    )
