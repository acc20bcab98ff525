"""Dead letters: events that a projection could not apply, with what waits behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from turnlog.agent.runtime import Runtime
from turnlog.agent.use_cases.tailing import Line, line_at
from turnlog.events.errors import NotFound
from turnlog.projectors.engine.parking import listed
from turnlog.projectors.models.registry import find
from turnlog.projectors.rebuild import replay


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One event of one projection. status: parked or dropped. reason: failed, or behind a parked event."""

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
    """The event at a sequence as it is in the log, and the projections that could not apply it."""

    line: Line
    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True)
class Retried:
    """Sequences that were applied, and those that are still parked; ascending."""

    applied: tuple[int, ...]
    parked: tuple[int, ...]


async def list_dead_letters(runtime: Runtime, projection: str | None = None) -> list[DeadLetter]:
    """Parked and dropped events in the order of the log. Raises NotFound for an unknown projection."""
    name = None if projection is None else find(projection).name
    async with runtime.pool.connection() as conn:
        return [DeadLetter(**row) for row in await listed(conn, name)]


async def show_dead_letter(runtime: Runtime, seq: int) -> DeadEvent:
    """Raises NotFound where the log has no event."""
    letters = [letter for letter in await list_dead_letters(runtime) if letter.seq == seq]
    return DeadEvent(await line_at(runtime.log, seq), tuple(letters))


async def parked(runtime: Runtime, seq: int | None = None, projection: str | None = None) -> list[DeadLetter]:
    """The parked events, of one sequence where one is given. Raises NotFound where nothing is parked there."""
    every = await list_dead_letters(runtime, projection)
    found = [one for one in every if one.status == "parked" and seq in (None, one.seq)]
    if seq is not None and not found:
        raise NotFound(f"no event is parked at sequence {seq}; `turnlog dead-letters list` shows them")
    return found


async def retry_dead_letters(runtime: Runtime, seq: int | None = None, projection: str | None = None) -> Retried:
    """Applies parked events again, thread by thread in order; seq: those of its thread. Raises NotFound."""
    letters = await parked(runtime, seq, projection)
    places = sorted({(one.projection, (one.tenant, one.thread_token)) for one in letters})
    return _together(
        [await replay.retry(runtime.log, runtime.database_url, find(name), place) for name, place in places]
    )


async def drop_dead_letter(runtime: Runtime, seq: int, projection: str | None = None) -> Retried:
    """Leaves an event out of the read models and applies what waited behind it. Raises NotFound."""
    letters = await parked(runtime, seq, projection)
    return _together(
        [await replay.drop(runtime.log, runtime.database_url, find(one.projection), seq) for one in letters]
    )


def _together(done: Sequence[replay.Replayed]) -> Retried:
    return Retried(
        tuple(sorted({seq for one in done for seq in one.applied})),
        tuple(sorted({seq for one in done for seq in one.parked})),
    )
