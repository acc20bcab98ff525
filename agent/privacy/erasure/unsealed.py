"""Decides which of a person's events must be overwritten in the log because they stay readable after the keys were
destroyed.

These are unsealed events, written before keys existed or by a reactor without a user; events sealed by a key that is
still in use; and, in shared threads, results derived from the person's turns.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from turnlog.agent.privacy.erasure.event_scan import ScannedEvent
from turnlog.agent.privacy.erasure.string_search import SearchStrings
from turnlog.events.codec import parsed
from turnlog.events.contracts import CONTRACTS, Event, MemorySource, ThreadForked, TurnRecorded
from turnlog.events.errors import InvalidEvent, TurnlogError
from turnlog.events.sealing import fields_of
from turnlog.events.stored import recorded


@dataclass(frozen=True, slots=True)
class Ending:
    """The part of a thread that an erasure covers. through: the last sequence to erase. destroyed: ids of the destroyed
    keys.

    first_seq: None for a thread of the person alone; for a shared thread, the sequence at which the person's part
    begins.
    """

    user: str
    destroyed: Collection[str]
    through: int
    first_seq: int | None = None


def must_go(scanned: ScannedEvent, ending: Ending) -> bool:
    """Returns whether the event must be overwritten in the log."""
    seq, mine = scanned.stored.seq, ending.first_seq is None or scanned.user == ending.user
    if seq > ending.through:
        return False
    if mine:
        return _is_readable(scanned, ending, ending.first_seq is None)
    if seq < (ending.first_seq or 0) or _is_dead(scanned, ending):
        return False
    contract = CONTRACTS.get(scanned.type or "")
    return contract is not None and bool(contract.PERSONAL) and contract.MIXES_SPEAKERS and _has_words(scanned)


def quotes(scanned: ScannedEvent, ending: Ending, search_strings: SearchStrings) -> bool:
    """Returns whether a server's error text, which is not encrypted, contains one of the person's strings."""
    mine = ending.first_seq is None or scanned.user == ending.user
    contract = CONTRACTS.get(scanned.type or "")
    return mine and contract is not None and contract.QUOTES_ERRORS and bool(search_strings.within(scanned.stored.body))


def without_derived(event: Event) -> Event | None:
    """Returns another person's fork without results derived from its initial turns; None if there are none.

    Its id is derived from the original id, so that it is appended only once.
    """
    fork = event.data
    if not isinstance(fork, ThreadForked) or not (fork.summary or fork.topics):
        return None
    plain = fork.model_copy(update={"summary": None, "topics": {}, "tagged_through": 0})
    return event.model_copy(update={"id": uuid5(event.id, "without what was derived"), "data": plain})


def is_late(event: Event, marks: Mapping[str, int], requests: Collection[UUID]) -> bool:
    """Returns whether an event after the erasure was derived from words that were said before it.

    marks: thread → sequence of its `erased` event. requests: ids of answers that were requested before the erasure.
    """
    data: Any = event.data
    if isinstance(data, TurnRecorded):
        return data.role != "user" and event.causation in requests
    derivation = getattr(data, "derivation", None)
    is_of_memories = any(hasattr(data, name) for name in ("memory", "entities", "conversation"))
    if derivation is not None and not is_of_memories:
        return bool(derivation.from_seq <= marks.get(event.thread, 0))
    return any(source.seq <= marks.get(source.thread, 0) for source in _sources(data))


def _sources(data: Any) -> list[MemorySource]:
    sources = list(data.memory.sources) if getattr(data, "memory", None) is not None else []
    sources += [data.source] if isinstance(getattr(data, "source", None), MemorySource) else []
    return [*sources, *(source for entity in getattr(data, "entities", ()) for source in entity.sources)]


def _is_readable(scanned: ScannedEvent, ending: Ending, own_thread: bool) -> bool:
    if scanned.envelope is None:
        return own_thread
    if "sealed" in scanned.envelope:
        return own_thread and not _is_dead(scanned, ending)
    if scanned.type == "thread_restored":
        return any(_envelope_speaks(envelope) for envelope in _restored(scanned.envelope))
    return _has_words(scanned)


def _is_dead(scanned: ScannedEvent, ending: Ending) -> bool:
    return scanned.envelope is not None and scanned.envelope.get("sealedkey") in ending.destroyed


def _has_words(scanned: ScannedEvent) -> bool:
    """Returns whether the event has a field with words; an event that cannot be decoded counts as having one."""
    try:
        return recorded(scanned.stored).event.data.has_words()
    except TurnlogError:
        return True


def _restored(envelope: dict[str, Any]) -> list[Any]:
    data = envelope.get("data")
    events = data.get("events") if isinstance(data, dict) else None
    if not isinstance(events, list):
        return [None]
    return [event.get("envelope") if isinstance(event, dict) else None for event in events]


def _envelope_speaks(text: object) -> bool:
    try:
        inner = parsed(str(text))
        contract = CONTRACTS[str(inner["type"]).removeprefix("turnlog.")]
    except (InvalidEvent, KeyError):
        return True
    return "sealed" not in inner and bool(fields_of(contract).tombstones)
