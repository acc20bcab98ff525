"""Defines the receipt of an erasure, and the event that stores it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

from turnlog.agent.privacy.erasure.event_scan import Person
from turnlog.events.contracts import Event, Recorded, UserErased
from turnlog.events.log import Log
from turnlog.events.subjects import ERASURES

SOURCE = "turnlog/erase"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of an erasure. seq: sequence of its event. hits: place → number of hits of the scan; empty if nothing
    is left.

    strings: place → the strings found there, masked. before: place → hits of the previous erasure; empty if this one
    was given strings to search for. passed_over: sequences of unreadable messages that contain the person's id; they
    stay. shared_threads: threads in which others spoke too; they stay without the person's words.
    """

    thread: str
    seq: int
    data: UserErased
    hits: dict[str, int]
    seconds: float
    passed_over: tuple[int, ...] = ()
    strings: dict[str, list[str]] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    shared_threads: tuple[str, ...] = ()


def receipt_thread(person: Person) -> str:
    """Returns the thread of a user's receipts. Its name is a hash of the user id, which does not reveal the id."""
    return ERASURES + sha256(f"{person.tenant}\0{person.user}".encode()).hexdigest()[:32]


def receipt_event(person: Person, data: UserErased) -> Event:
    return Event(source=SOURCE, time=datetime.now(UTC), tenant=person.tenant, thread=receipt_thread(person), data=data)


async def last_receipt(log: Log, person: Person) -> Recorded | None:
    """Returns the receipt of the person's last erasure. Raises LogUnavailable, GapInLog."""
    every = [
        receipt async for receipt in log.read_thread(person.tenant, receipt_thread(person), types=("user_erased",))
    ]
    return every[-1] if every else None


def found_in(receipt: Recorded | None) -> dict[str, int]:
    """Returns place → hits of a receipt's scan, including hits that the receipt took over from an earlier one."""
    data = receipt.event.data if receipt else None
    return dict(data.found_in or {}) if isinstance(data, UserErased) else {}
