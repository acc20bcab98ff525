"""Events that replace others from which words were struck: readers find them at the sequences of the deleted messages.

A replacement is an `event_redacted` on the thread of the event. It counts only where the log no longer has that
message, so that nobody can change an event by publishing one. A `turn_redacted` follows before anything is deleted:
readers look for the last of these before they read, and for replacements only when there is a new one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnlog.events.codec import decode, parsed
from turnlog.events.contracts import CONTRACTS, REMOVALS, EventRedacted
from turnlog.events.errors import TurnlogError
from turnlog.events.personal_data_caches import holds_words
from turnlog.events.signing import SIGNED_THREADS
from turnlog.events.subjects import matches, thread_token


@dataclass(frozen=True, slots=True)
class Replacement:
    """carrier: sequence of the event that holds it; subject, stored_ns: of the message that was deleted."""

    seq: int
    carrier: int
    subject: str
    body: bytes
    stored_ns: int
    event_id: UUID


class Replacements:
    """The replacements that a connection knows. through: the last `turn_redacted` before they were read."""

    def __init__(self) -> None:
        self.through = 0
        self.superseded: frozenset[int] = frozenset()
        self._by_seq: dict[int, Replacement] = {}
        holds_words(self)

    def forget_all(self) -> None:
        self.through, self._by_seq = 0, {}

    def know(self, through: int, found: Sequence[Replacement]) -> None:
        """Keeps the last one for each sequence; `superseded` has the sequences of the events that hold the others."""
        self._by_seq = {one.seq: one for one in found}
        self.superseded = frozenset({one.carrier for one in found} - {one.carrier for one in self._by_seq.values()})
        self.through = through

    def at(self, seq: int) -> Replacement | None:
        return self._by_seq.get(seq)

    def fitting(self, filters: Iterable[str], start_seq: int) -> list[Replacement]:
        """Returns those that a reader with these filters finds from a sequence on, in order."""
        chosen = list(filters) if self._by_seq else []
        return [
            one
            for seq, one in sorted(self._by_seq.items())
            if seq >= start_seq and any(matches(one.subject, filter_) for filter_ in chosen)
        ]


def replacement(seq: int, subject: str, body: bytes) -> Replacement | None:
    """Returns what the `event_redacted` at a sequence replaces; None for one that replaces nothing: it is malformed, or
    its event could not have been redacted."""
    try:
        event = decode(body)
        data = event.data
        assert isinstance(data, EventRedacted)
        event_id = UUID(str(parsed(data.envelope)["id"]))
    except (TurnlogError, KeyError, ValueError):
        return None
    *place, token, _ = subject.split(".")
    is_place = thread_token(event.thread) == token and not event.thread.startswith(SIGNED_THREADS)
    if not is_place or data.seq >= seq or data.event_type not in CONTRACTS.keys() - REMOVALS - {data.type}:
        return None
    of = ".".join((*place, token, data.event_type))
    return Replacement(data.seq, seq, of, data.envelope.encode(), _ns(data.stored_at), event_id)


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
