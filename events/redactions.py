"""Replacements of events from which words were redacted; readers find them at the sequences of the deleted messages.

A replacement is an `event_redacted` on the thread of the event. It is used only if the log no longer has the original
message, and only if it is signed, so that nobody can change an event by publishing a replacement.

A `turn_redacted` or `turns_expired` is stored after the replacements and before any deletion. Readers look for the last
of these events before they read, and read the replacements only if there is a new one. After that, readers that are
already open are ended (Log.end_readers) and reopen after their last event.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnlog.events.codec import decode, parsed
from turnlog.events.contracts import CONTRACTS, REMOVALS, EventRedacted
from turnlog.events.errors import TurnlogError
from turnlog.events.personal_data_caches import holds_words
from turnlog.events.signing import SIGNED_THREADS, Signer, UnsignedEvent
from turnlog.events.subjects import matches, parse_stored, thread_token

logger = logging.getLogger("turnlog.redactions")
READER = "reader-"  # the names of readers' consumers begin like this


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacement of a deleted message. seq, subject, stored_ns: those of that message. carrier: the sequence of
    the event that contains the replacement."""

    seq: int
    carrier: int
    subject: str
    body: bytes
    stored_ns: int
    event_id: UUID


class Replacements:
    """The replacements that a connection knows. through: the sequence of the last redaction before they were read.
    signer: checks the replacements; without a signer nothing is checked."""

    def __init__(self, signer: Signer | None = None) -> None:
        self.through, self.signer = 0, signer
        self.superseded: frozenset[int] = frozenset()
        self._by_seq: dict[int, Replacement] = {}
        self._by_thread: dict[str, list[Replacement]] = {}  # by thread token, because most readers read one thread
        holds_words(self)

    def forget_all(self) -> None:
        self.through, self._by_seq, self._by_thread = 0, {}, {}

    def know(self, through: int, replacements: Sequence[Replacement]) -> None:
        """Keeps the last replacement for each sequence; `superseded` becomes the sequences of events with earlier
        replacements."""
        self._by_seq = {redacted.seq: redacted for redacted in replacements}
        self._by_thread = {}
        for redacted in self._by_seq.values():
            self._by_thread.setdefault(parse_stored(redacted.subject).thread_token, []).append(redacted)
        self.superseded = frozenset(
            {redacted.carrier for redacted in replacements} - {redacted.carrier for redacted in self._by_seq.values()}
        )
        self.through = through

    def at(self, seq: int) -> Replacement | None:
        return self._by_seq.get(seq)

    def fitting(
        self, filters: Iterable[str], start_seq: int, since: datetime | None, until: datetime
    ) -> list[Replacement]:
        """Returns the replacements for a reader with these filters from a sequence or a stored time on, in order.
        until: only replacements of events that were stored by this time."""
        fitting, from_ns, until_ns = dict[int, Replacement](), _ns(since) if since else 0, _ns(until)
        for filter_ in filters if self._by_seq else ():
            token = ([*filter_.split("."), "*", "*"])[4]
            for redacted in self._by_seq.values() if token in ("*", ">") else self._by_thread.get(token, ()):
                if (
                    redacted.seq >= start_seq
                    and from_ns <= redacted.stored_ns <= until_ns
                    and matches(redacted.subject, filter_)
                ):
                    fitting[redacted.seq] = redacted
        return [fitting[seq] for seq in sorted(fitting)]


def replacement(seq: int, subject: str, body: bytes, signer: Signer | None) -> Replacement | None:
    """Returns the replacement in the `event_redacted` at a sequence; None if it is malformed or unsigned, or if its
    target is an event that cannot be redacted. Raises KeyUnavailable if the secret to check it cannot be fetched."""
    try:
        event = decode(body)
        data = event.data
        if not isinstance(data, EventRedacted):
            return None
        event_id = UUID(str(parsed(data.envelope)["id"]))
    except (TurnlogError, KeyError, ValueError):
        return None
    try:
        if signer is not None:
            signer.check_signed(seq, body)
    except UnsignedEvent as error:
        logger.warning("a replacement is ignored: %s", error)
        return None
    *prefix, token, _ = subject.split(".")
    thread_fits = thread_token(event.thread) == token and not event.thread.startswith(SIGNED_THREADS)
    if not thread_fits or data.seq >= seq or data.event_type not in CONTRACTS.keys() - REMOVALS - {data.type}:
        return None
    of = ".".join((*prefix, token, data.event_type))
    return Replacement(data.seq, seq, of, data.envelope.encode(), _ns(data.stored_at), event_id)


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
