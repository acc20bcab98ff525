"""What of a person's events must leave the log itself, because no destroyed key makes it unreadable (M9).

Those are events without a seal, as they were written before there were keys or by a reactor without a user; events
sealed by a key that still lives; and in threads shared with others what was derived from the person's turns too.
JetStream overwrites the bytes of a message that is deleted so.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from turnlog.agent.privacy.needles import Needles
from turnlog.agent.privacy.traces import Place
from turnlog.events.codec import CONTRACTS, decode
from turnlog.events.contracts import AnswerReceipt, Event, ThreadForked, TurnRecorded
from turnlog.events.errors import TurnlogError
from turnlog.events.memory_contracts import MemorySource
from turnlog.events.sealing import fields_of

# Of a thread that several people speak in, these mix what they said.
DERIVED = frozenset(
    {
        "summary_written",
        "topics_tagged",
        "segment_checkpointed",
        "session_updated",
        "checkpoint_saved",
        "checkpoint_writes_saved",
    }
)


# They have the error text of a server in clear, which may quote what it was asked.
WITH_ERRORS = frozenset({"usage_metered", "memories_extracted", "segment_checkpoint_failed"})


@dataclass(frozen=True, slots=True)
class Ending:
    """through: up to where the person's threads are erased. destroyed: ids of keys that are no more.

    first_seq: None for a thread of the person's own; else where their part of a shared one begins.
    """

    user: str
    destroyed: Collection[str]
    through: int
    first_seq: int | None = None


def must_go(place: Place, ending: Ending) -> bool:
    """Whether the event must be overwritten in the log."""
    seq, mine = place.stored.seq, ending.first_seq is None or place.user == ending.user
    if seq > ending.through:
        return False
    if mine:
        return _is_readable(place, ending, ending.first_seq is None)
    if seq < (ending.first_seq or 0) or _is_dead(place, ending):
        return False
    return _tells(place) if place.type == "answer_receipt" else place.type in DERIVED and _speaks(place)


def quotes(place: Place, ending: Ending, needles: Needles) -> bool:
    """Whether a server's error text, which is clear, has one of the person's strings in it."""
    mine = ending.first_seq is None or place.user == ending.user
    return mine and place.type in WITH_ERRORS and bool(needles.within(place.stored.body))


def without_derived(event: Event) -> Event | None:
    """A fork by somebody else without what was derived from the turns it begins with; None when there is nothing.

    Its id follows from the first one's, so that it is told once.
    """
    fork = event.data
    if not isinstance(fork, ThreadForked) or not (fork.summary or fork.topics):
        return None
    plain = fork.model_copy(update={"summary": None, "topics": {}, "tagged_through": 0})
    return event.model_copy(update={"id": uuid5(event.id, "without what was derived"), "data": plain})


def is_late(event: Event, marks: Mapping[str, int], requests: Collection[UUID]) -> bool:
    """Whether something that came after a thread was erased was made of what was said before.

    marks: thread → sequence of its erasing. requests: ids of the answers that were asked for before.
    """
    data: Any = event.data
    if isinstance(data, TurnRecorded):
        return data.role != "user" and event.causation in requests
    derivation = getattr(data, "derivation", None)
    if derivation is not None and not _on_memories(data):
        return bool(derivation.from_seq <= marks.get(event.thread, 0))
    return any(source.seq <= marks.get(source.thread, 0) for source in _sources(data))


def _on_memories(data: Any) -> bool:
    return hasattr(data, "memory") or hasattr(data, "entities") or hasattr(data, "conversation")


def _sources(data: Any) -> list[MemorySource]:
    found = list(data.memory.sources) if getattr(data, "memory", None) is not None else []
    found += [data.source] if isinstance(getattr(data, "source", None), MemorySource) else []
    return [*found, *(source for entity in getattr(data, "entities", ()) for source in entity.sources)]


def _is_readable(place: Place, ending: Ending, own_thread: bool) -> bool:
    if place.envelope is None:
        return own_thread
    if "sealed" in place.envelope:
        return own_thread and not _is_dead(place, ending)
    if place.type == "thread_restored":
        return any(_envelope_speaks(one) for one in _restored(place.envelope))
    return _speaks(place)


def _is_dead(place: Place, ending: Ending) -> bool:
    return place.envelope is not None and place.envelope.get("sealedkey") in ending.destroyed


def _speaks(place: Place) -> bool:
    """Whether the event has a field with words in it; what cannot be told counts as such."""
    try:
        event = decode(place.stored.body, place.stored.keyring)
    except TurnlogError:
        return True
    return fields_of(type(event.data)).any_in(event.data)


def _tells(place: Place) -> bool:
    """Of a receipt: whether it has topics or notes, for its other parts are numbers and ids."""
    try:
        receipt = decode(place.stored.body, place.stored.keyring).data
    except TurnlogError:
        return True
    return isinstance(receipt, AnswerReceipt) and bool(receipt.notes or any(tier.topics for tier in receipt.tiers))


def _restored(envelope: dict[str, Any]) -> list[Any]:
    data = envelope.get("data")
    events = data.get("events", []) if isinstance(data, dict) else []
    return [one.get("envelope") if isinstance(one, dict) else None for one in events]


def _envelope_speaks(text: object) -> bool:
    try:
        inner = json.loads(str(text))
        contract = CONTRACTS[str(inner["type"]).removeprefix("turnlog.")]
    except (ValueError, KeyError, TypeError):
        return True
    return "sealed" not in inner and bool(fields_of(contract).tombstones)
