"""Reads a thread from the log alone, including the turns that a fork shares with its parents."""

from dataclasses import dataclass
from uuid import UUID

from turnlog.events.contracts import REMOVALS, Recorded, ThreadForked, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.models.conversation.speech import spoken_text
from turnlog.projectors.models.sessions.state import is_answer

TYPES = ("turn_recorded", "thread_forked", "session_created", *sorted(REMOVALS))


@dataclass(frozen=True, slots=True)
class Lineage:
    """A thread and the turns that it shares with its parents. turns: turns of the thread and of its parents, oldest
    first. user: the owner, if the log names one. shared_seq: turns up to this sequence belong to the parents; 0 if the
    thread is not a fork."""

    turns: tuple[Recorded, ...] = ()
    user: str | None = None
    shared_seq: int = 0

    @property
    def after_seq(self) -> int | None:
        """Returns the sequence before that of the first turn; None if there are no turns."""
        return self.turns[0].seq - 1 if self.turns else None

    @property
    def answers(self) -> list[str]:
        """Returns the texts of the assistant's answers."""
        data = [turn.event.data for turn in self.turns]
        return [spoken_text(turn) for turn in data if isinstance(turn, TurnRecorded) and is_answer(turn)]


async def lineage(log: Log, tenant: str, thread: str, through_seq: int) -> Lineage:
    """Returns the thread up to a sequence, without turns of a removed parent and of that parent's parents.

    Raises LogUnavailable, GapInLog.
    """
    known: dict[str, int] = {}
    events: list[Recorded] = []
    current, through = thread, through_seq
    while current not in known:  # only a foreign producer can write forks in a circle
        known[current] = through
        own = await _since_removal(log, tenant, current, through_seq if current == thread else None)
        events += [recorded for recorded in own if recorded.seq <= through or recorded.event.type == "session_created"]
        fork = next((recorded.event.data for recorded in own if isinstance(recorded.event.data, ThreadForked)), None)
        if fork is None:
            break
        current, through = fork.parent, min(fork.at_seq, through)
    events.sort(key=lambda recorded: recorded.seq)
    return Lineage(
        tuple(recorded for recorded in events if isinstance(recorded.event.data, TurnRecorded)),
        next((recorded.event.user for recorded in events if recorded.event.user), None),
        max((seq for parent, seq in known.items() if parent != thread), default=0),
    )


async def _since_removal(log: Log, tenant: str, thread: str, through_seq: int | None) -> list[Recorded]:
    """Returns the thread's events since its last removal in the way projectors apply them: each once, without
    undecodable events, which are parked."""
    by_id: dict[UUID, Recorded] = {}
    async for stored in log.read_stored(tenant, thread, through_seq=through_seq, types=TYPES):
        recorded = incoming(stored).recorded
        if recorded is not None and recorded.event.type in REMOVALS:
            by_id.clear()
        elif recorded is not None:
            by_id.setdefault(recorded.event.id, recorded)
    return list(by_id.values())
