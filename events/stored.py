"""A message as it is stored in the log, and its decoding."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from turnlog.events.codec import decode
from turnlog.events.contracts import Recorded
from turnlog.events.errors import InvalidEvent
from turnlog.events.sealing import Keyring
from turnlog.events.subjects import parse_stored, present_thread, thread_token


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored message. pending: how many more messages match the reader's filter.

    keyring: opens the sealed fields.
    """

    seq: int
    subject: str
    body: bytes
    stored_ns: int
    pending: int
    message_id: UUID | None = None
    keyring: Keyring | None = field(default=None, repr=False, compare=False)

    @property
    def stored_at(self) -> datetime:
        return datetime.fromtimestamp(self.stored_ns / 1e9, UTC)


def recorded(stored: Stored) -> Recorded:
    """Decodes a message and checks that its envelope fits its subject.

    Raises InvalidEvent, or KeyUnavailable (try again later).
    """
    subject = parse_stored(stored.subject)
    event = decode(stored.body, stored.keyring)
    if (event.tenant, thread_token(event.thread), event.type) != (subject.tenant, subject.thread_token, subject.type):
        raise InvalidEvent(
            f"event {event.id} says tenant {event.tenant!r}, thread {event.thread[:80]!r}, type {event.type!r}, "
            f"but was published on {stored.subject!r}"
        )
    if (thread := present_thread(event.thread, event.user)) != event.thread:
        event = event.model_copy(update={"thread": thread})
    return Recorded(event, stored.seq, subject.partition, stored.stored_at)
