"""What an erasure did and found: as the event that proves it and as text for people (M9, E 13.4)."""

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from turnlog.agent.privacy.scanning import Scan
from turnlog.agent.privacy.traces import Person
from turnlog.events.contracts import Event, UserErased
from turnlog.events.subjects import ERASURES

SOURCE = "turnlog/erase"


@dataclass(frozen=True, slots=True)
class Receipt:
    """seq: of the event. hits: place → how often the scan found something there; empty when nothing is left.

    passed_over: sequences of messages that have the person's id somewhere and cannot be read: they stay.
    """

    thread: str
    seq: int
    data: UserErased
    hits: dict[str, int]
    seconds: float
    passed_over: tuple[int, ...] = ()


def receipt_thread(person: Person) -> str:
    """The thread of a user's receipts: derived from the user id by a hash that does not reveal it."""
    return ERASURES + sha256(f"{person.tenant}\0{person.user}".encode()).hexdigest()[:32]


def receipt_event(person: Person, data: UserErased) -> Event:
    return Event(source=SOURCE, time=datetime.now(UTC), tenant=person.tenant, thread=receipt_thread(person), data=data)


def receipt_data(
    reason: str | None, keys: int, threads: int, counts: dict[str, int], scan: Scan, strings: int
) -> UserErased:
    return UserErased(
        reason=reason,
        keys_destroyed=keys,
        threads=threads,
        counts={name: count for name, count in counts.items() if count},
        scanned=dict(scan.places),
        strings_searched=strings,
        hits=scan.total,
    )
