"""Decides which events retention keeps, keeps without the words of old turns, or removes. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from turnlog.agent.privacy.erasure.string_search import SearchStrings
from turnlog.agent.privacy.redaction.striking import (
    MARK,
    InvalidWords,
    Sign,
    comparable,
    strike_of_texts,
    struck,
    with_data,
)
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import (
    CheckpointSaved,
    CheckpointWritesSaved,
    EntitiesFound,
    Event,
    EventRedacted,
    Memory,
    MemoryArchived,
    MemoryConfirmed,
    MemoryConflictRaised,
    MemorySource,
    ParticipantSet,
    ProfileWritten,
    Recorded,
    SegmentCheckpointed,
    SessionCreated,
    SummaryWritten,
    ThreadForked,
    ThreadOpened,
    ThreadRenamed,
    ThreadRestored,
    TopicsTagged,
    TurnRecorded,
)
from turnlog.events.contracts.base import ERASED, is_undated
from turnlog.events.errors import InvalidEvent
from turnlog.events.sealing import is_erased, with_tombstones

Outcome = Callable[[Recorded], Event | None]
# While a conversation exists, these events stay regardless of their age, because the conversation could not continue
# without them.
KEPT = (
    *(CheckpointSaved, CheckpointWritesSaved, ParticipantSet, SessionCreated),
    *(ThreadForked, ThreadOpened, ThreadRenamed, ThreadRestored),
)


@dataclass(frozen=True, slots=True)
class Ages:
    """The limits for the age of turns. at: the time that counts as now. default: days for everybody; None means no
    limit. own: (tenant, user) → days that the user chose."""

    at: datetime
    default: int | None
    own: Mapping[tuple[str, str | None], int]

    def days(self, tenant: str, user: str | None) -> int | None:
        """Returns the smaller one of the default and the user's own number of days; None if there is no limit."""
        limits = (self.default, self.own.get((tenant, user)))
        return min((days for days in limits if days is not None), default=None)

    def is_old(self, tenant: str, user: str | None, said_at: datetime, stored_at: datetime) -> bool:
        """Returns whether a turn is too old. Its age counts from `said_at` or `stored_at`, whichever is earlier; the
        age of an undated turn counts from `stored_at`."""
        days, since = self.days(tenant, user), stored_at if is_undated(said_at) else min(said_at, stored_at)
        return days is not None and since < self.at - timedelta(days=days)

    def has_old(self, recorded: Recorded) -> bool:
        return self.is_old(recorded.event.tenant, recorded.event.user, recorded.event.time, recorded.stored_at)


@dataclass(frozen=True, slots=True)
class Gone:
    """The old turns of a conversation. first, last: their lowest and highest sequence. texts: their sentences that no
    younger turn contains."""

    first: int
    last: int
    texts: tuple[str, ...]


def is_clear(event: Event) -> bool:
    """Returns whether the event has no field for a person's words. Such an event can stay, for the statistics."""
    data = event.data
    return not type(data).PERSONAL and not getattr(data, "error", None) and not isinstance(data, EventRedacted)


def outcomes(ages: Ages, gone: Gone | None, begins_with: Gone | None, sign: Sign) -> Outcome:
    """Returns a function that decides about each event of a conversation that is not removed completely. The function
    returns None to remove the event, the event itself to keep it, or an event without the words of old turns.
    begins_with: the old turns of the parent conversation, if this one is a fork."""
    search_strings = SearchStrings(gone.texts if gone else ())

    def outcome(recorded: Recorded) -> Event | None:
        event, data = recorded.event, recorded.event.data
        if isinstance(data, ThreadRestored):
            return _restored(recorded, outcome)
        is_old = ages.has_old(recorded)
        if (gone and _is_derived(event, gone)) or (is_old and type(data).PERSONAL and not isinstance(data, KEPT)):
            return None
        if isinstance(data, TurnRecorded | EventRedacted) or gone is None:
            return event
        if isinstance(data, SessionCreated) and is_old:
            return _erased(event)
        if isinstance(data, ThreadRenamed | ThreadOpened) and _begins_old(data.label, gone):
            if isinstance(data, ThreadRenamed):
                return None
            event = with_data(event, {"label": None})
        if isinstance(data, ThreadForked) and begins_with and (data.summary or data.topics):
            event = with_data(event, {"summary": None, "topics": {}, "tagged_through": 0})
        return _without(event, search_strings, sign)

    return outcome


def _is_derived(event: Event, gone: Gone) -> bool:
    """Returns whether a model made the text of the event from turns that include old ones. Such a text is made again
    from the turns that are left."""
    match event.data:
        case SummaryWritten(covered_seq=covered) | SegmentCheckpointed(covered_seq=covered):
            return covered >= gone.first
        case TopicsTagged(derivation=derivation):
            return derivation.from_seq <= gone.last and derivation.through_seq >= gone.first
    return False


def _begins_old(label: str | None, gone: Gone) -> bool:
    """Returns whether the name of a conversation is the beginning of an old turn."""
    words = comparable([(label or "").rstrip("….")])
    return bool(words) and any(comparable([text]).startswith(words) for text in gone.texts)


def _without(event: Event, search_strings: SearchStrings, sign: Sign) -> Event | None:
    hits = search_strings.within(event.data.model_dump_json().encode())
    if not hits:
        return event
    try:
        return struck(event, strike_of_texts([search_strings.strings[number] for number in hits], sign), 0) or event
    except InvalidWords:  # the contract does not allow the mark in this field
        return None


def _erased(event: Event) -> Event:
    data = with_tombstones(event.data.model_dump(mode="json", exclude_none=True), type(event.data))
    return event if is_erased(event) else with_data(event, data)


def _restored(recorded: Recorded, outcome: Outcome) -> Event:
    assert isinstance(recorded.event.data, ThreadRestored)
    parts = []
    for part in recorded.event.data.events:
        try:
            inner = decode(part.envelope.encode())
        except InvalidEvent:
            continue
        left = outcome(Recorded(inner, part.seq, recorded.partition, part.stored_at))
        if left is inner:
            parts.append(part)
        elif left is not None:
            parts.append(part.model_copy(update={"envelope": encode(left).decode()}))
    return with_data(recorded.event, {"events": parts})


def memory_outcomes(ages: Ages, events: Sequence[Recorded]) -> tuple[set[UUID], Outcome]:
    """Returns the ids of the memories to forget, and a function like that of `outcomes` for the events of a memory
    thread. A memory is forgotten if all turns that it comes from are old, unless it was written by hand. From other
    memories, the function removes quotes of old turns."""
    sources: dict[UUID, list[bool]] = {}
    by_hand: set[UUID] = set()
    changed: set[UUID] = set()  # memories that lose a quote

    def is_old(source: MemorySource, recorded: Recorded) -> bool:
        return ages.is_old(recorded.event.tenant, recorded.event.user, source.said_at, recorded.stored_at)

    for recorded in events:
        data, memory = recorded.event.data, getattr(recorded.event.data, "memory", None)
        if isinstance(memory, Memory):
            sources.setdefault(memory.id, []).extend(is_old(source, recorded) for source in memory.sources)
            lose = any(source.quote != MARK and is_old(source, recorded) for source in memory.sources)
            changed |= {memory.id} if lose else set()
            by_hand |= {memory.id} if memory.origin == "user" else set()
        if isinstance(data, MemoryConfirmed) and data.source.quote != ERASED:
            sources.setdefault(data.memory_id, []).append(is_old(data.source, recorded))
    gone = {memory for memory, old in sources.items() if old and all(old) and memory not in by_hand}

    def outcome(recorded: Recorded) -> Event | None:
        if isinstance(recorded.event.data, ProfileWritten) and not (gone | changed).isdisjoint(
            recorded.event.data.lines
        ):
            return None  # the profile is written again
        return _of_memory(recorded, gone, lambda source: is_old(source, recorded))

    return gone, outcome


def _of_memory(recorded: Recorded, gone: set[UUID], is_old: Callable[[MemorySource], bool]) -> Event:
    event, data = recorded.event, recorded.event.data
    memory = getattr(data, "memory", None)
    if isinstance(memory, Memory) and memory.id in gone:
        return _erased(event)
    if isinstance(data, MemoryConfirmed | MemoryArchived) and data.memory_id in gone:
        return _erased(event)
    if isinstance(data, MemoryConflictRaised) and not gone.isdisjoint(data.against):
        event = with_data(event, {"question": ERASED})
    if isinstance(memory, Memory):
        return with_data(event, {"memory": memory.model_copy(update={"sources": _quotes(memory.sources, is_old)})})
    if isinstance(data, MemoryConfirmed):
        return with_data(event, {"source": _quotes((data.source,), is_old)[0]})
    if isinstance(data, EntitiesFound):
        kept = [entity for entity in data.entities if not entity.sources or not all(map(is_old, entity.sources))]
        said = [entity.model_copy(update={"sources": _quotes(entity.sources, is_old)}) for entity in kept]
        return with_data(event, {"entities": said})
    return event


def _quotes(sources: Sequence[MemorySource], is_old: Callable[[MemorySource], bool]) -> tuple[MemorySource, ...]:
    return tuple(
        source.model_copy(update={"quote": MARK})
        if source.quote and source.quote != ERASED and is_old(source)
        else source
        for source in sources
    )
