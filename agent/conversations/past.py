"""Returns a thread as it was at a sequence: its turns from `messages`, and the derived state folded from the log.

The read models contain only the present: one summary, the sums of topics, the last pruning. Each of these comes from
events, so folding the events up to a sequence returns the state of the read models at that time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from turnlog.events.contracts import (
    REMOVALS,
    ForkedSummary,
    HistoryPruned,
    Recorded,
    SummaryWritten,
    ThreadForked,
    TopicsTagged,
)
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message, thread_messages
from turnlog.projectors.models.conversation.thread_lookup import TOPICS, Overview

TYPES = ("summary_written", "topics_tagged", "history_pruned", "thread_forked", *sorted(REMOVALS))


@dataclass(slots=True)
class Derived:
    """The state derived from the events of a thread so far. topics: topic → number of mentions and the time when it was
    last seen. summary_seq: sequence of the summary's event."""

    summary: ForkedSummary | None = None
    summary_seq: int | None = None
    topics: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    tagged_through: int = 0
    pruned_through: int = 0

    def ranked(self) -> list[str]:
        """Returns the topics that a context shows, in the order of thread_overview."""
        by_name = sorted(self.topics)
        return sorted(by_name, key=self.topics.__getitem__, reverse=True)[:TOPICS]

    def add(self, recorded: Recorded) -> None:
        """Applies the next event; events of other types change nothing."""
        match recorded.event.data:
            case SummaryWritten() as made:
                copied = ForkedSummary(
                    summary=made.summary,
                    message_count=made.message_count,
                    covered_seq=made.covered_seq,
                    model=made.derivation.model,
                )
                self._summary(copied, recorded.seq)
            case TopicsTagged(topics=topics, derivation=derivation):
                self._topics(topics, recorded.event.time, derivation.through_seq)
            case HistoryPruned(through_seq=through):
                self.pruned_through = max(self.pruned_through, through)
            case ThreadForked() as fork:
                self._summary(fork.summary, recorded.seq)
                self._topics(fork.topics, recorded.event.time, fork.tagged_through)
                self.pruned_through = max(self.pruned_through, fork.pruned_through)

    def _summary(self, summary: ForkedSummary | None, seq: int) -> None:
        if summary is not None:
            self.summary, self.summary_seq = summary, seq

    def _topics(self, topics: dict[str, int], seen: datetime, through: int) -> None:
        self.tagged_through = max(self.tagged_through, through)
        for topic, mentions in topics.items():
            before, last = self.topics.get(topic, (0, seen))
            self.topics[topic] = (before + mentions, max(last, seen))


def fold(events: Iterable[Recorded]) -> Derived:
    """Returns the state derived from the events of one thread. events: in order and without removals."""
    derived = Derived()
    for recorded in events:
        derived.add(recorded)
    return derived


@dataclass(frozen=True, slots=True)
class Moment:
    """The derived state of a thread at a sequence. thread, seq: the thread whose events give the state, and the
    sequence up to which they count. For a sequence before the thread was forked, this is the parent."""

    thread: str
    seq: int
    derived: Derived


async def moment(log: Log, tenant: str, thread: str, seq: int) -> Moment:
    """Returns the state of a thread at a sequence. Raises NotFound for a thread that does not exist, was deleted since,
    or has not reached that sequence."""
    await _check_head(log, tenant, thread, seq)
    known: set[str] = set()
    while thread not in known:
        known.add(thread)
        events = await _events(log, tenant, thread, seq)
        fork = next((r for r in events if isinstance(r.event.data, ThreadForked)), None)
        if fork is None or fork.seq <= seq:
            return Moment(thread, seq, fold(r for r in events if r.seq <= seq))
        assert isinstance(fork.event.data, ThreadForked)
        thread, seq = fork.event.data.parent, min(seq, fork.event.data.at_seq)
    raise NotFound(f"thread {thread!r} is recorded as a fork of itself")


async def past_state(conn: Connection, log: Log, tenant: str, thread: str, seq: int) -> tuple[Overview, list[Message]]:
    """Returns the overview and the turns of a thread as of a sequence.

    The read model `messages` must have applied that sequence. Raises NotFound like `moment`, and for a sequence before
    the first turn.
    """
    then = (await moment(log, tenant, thread, seq)).derived
    messages = await thread_messages(conn, tenant, thread, then.pruned_through, seq)
    if not messages:
        raise await before_the_first_turn(conn, log, tenant, thread, seq)
    summary = then.summary.summary if then.summary else None
    last = messages[-1].seq
    return Overview(then.pruned_through, len(messages), last, summary, then.summary_seq, then.ranked()), messages


async def before_the_first_turn(conn: Connection, log: Log, tenant: str, thread: str, seq: int) -> NotFound:
    turns = await thread_messages(conn, tenant, thread)
    if not turns:
        return NotFound(f"thread {thread!r} has no turns; `turnlog threads` lists those that do")
    head = await log.thread_head(tenant, thread)
    return NotFound(f"thread {thread!r} has sequences from {turns[0].seq} to {head}; {seq} is before its first turn")


async def _check_head(log: Log, tenant: str, thread: str, seq: int) -> None:
    head = await log.thread_head(tenant, thread)
    if not head:
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    if seq > head:
        raise NotFound(f"thread {thread!r} ends at sequence {head}, before {seq}")


async def _events(log: Log, tenant: str, thread: str, seq: int) -> Sequence[Recorded]:
    """Returns the events since the last removal in the way projectors apply them: each id once, without undecodable
    events."""
    events: list[Recorded] = []
    known: set[UUID] = set()
    async for stored in log.read_stored(tenant, thread, types=TYPES):
        recorded = incoming(stored).recorded
        if recorded is None or recorded.event.id in known:
            continue
        known.add(recorded.event.id)
        if recorded.event.type not in REMOVALS:
            events.append(recorded)
        elif recorded.seq > seq:
            raise NotFound(f"thread {thread!r} was deleted with its past at sequence {recorded.seq}")
        else:
            events = []
    return events
