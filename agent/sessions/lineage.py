"""A thread with the shared past that it has as a fork, as the log has them (C10): without the read models."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from turnlog.events.contracts import Recorded, ThreadForked, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.incoming import incoming
from turnlog.projectors.projection import REMOVALS

TYPES = ("turn_recorded", "thread_forked", "session_created", *sorted(REMOVALS))


@dataclass(frozen=True, slots=True)
class Lineage:
    """turns: of the thread and of those it is a fork of, oldest first. user: whose conversation it is, as far as the
    log tells. shared_seq: its turns up to here are its parents'; 0: it is no fork."""

    turns: tuple[Recorded, ...] = ()
    user: str | None = None
    shared_seq: int = 0


async def lineage(log: Log, tenant: str, thread: str, through_seq: int) -> Lineage:
    """The thread up to a sequence. A removed parent has taken its turns along, and its own past.

    Raises LogUnavailable, GapInLog.
    """
    known: dict[str, int] = {}
    events: list[Recorded] = []
    place, through = thread, through_seq
    while place not in known:  # a circle is only a foreign producer's
        known[place] = through
        own = await _since_removal(log, tenant, place, through_seq if place == thread else None)
        events += [one for one in own if one.seq <= through or one.event.type == "session_created"]
        if (fork := _fork(own)) is None:
            break
        place, through = fork.parent, min(fork.at_seq, through)
    events.sort(key=lambda one: one.seq)
    return Lineage(
        tuple(one for one in events if isinstance(one.event.data, TurnRecorded)),
        next((one.event.user for one in events if one.event.user), None),
        max((seq for parent, seq in known.items() if parent != thread), default=0),
    )


def _fork(events: Iterable[Recorded]) -> ThreadForked | None:
    """The first one counts, as for the read models."""
    return next((one.event.data for one in events if isinstance(one.event.data, ThreadForked)), None)


async def _since_removal(log: Log, tenant: str, thread: str, through_seq: int | None) -> list[Recorded]:
    """Each event once, as the projectors take them: one that cannot be read is parked, and in no read model either."""
    found: dict[UUID, Recorded] = {}
    async for stored in log.read_stored(tenant, thread, through_seq=through_seq, types=TYPES):
        recorded = incoming(stored).recorded
        if recorded is not None and recorded.event.type in REMOVALS:
            found.clear()
        elif recorded is not None:
            found.setdefault(recorded.event.id, recorded)
    return list(found.values())
