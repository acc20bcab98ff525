"""Values of the extraction. Input: turns. Output: findings with evidence, and rejections with reasons. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from turnlog.events.contracts import Entity, MemoryKind, MemorySource, Origin, Strategy
from turnlog.events.contracts.base import END_OF_TIME, is_undated


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that may be evidence: the user's own, or a tool result if the settings allow it. name: of the speaker.
    to_people: True if it was said to other people, so that it is not a request to turnlog."""

    thread: str
    seq: int
    event_id: UUID
    said_at: datetime
    text: str
    name: str | None = None
    is_tool: bool = False
    to_people: bool = field(default=False, compare=False)

    def source(self, quote: str) -> MemorySource:
        return MemorySource(thread=self.thread, seq=self.seq, event_id=self.event_id, quote=quote, said_at=self.said_at)


@dataclass(frozen=True, slots=True)
class Finding:
    """A memory that an extractor proposes; conflicts are decided later. dedupe_key: the key after the rule's template
    was filled with normalised values."""

    kind: MemoryKind
    content: str
    category: str | None
    value: str | None
    importance: float
    confidence: float
    origin: Origin
    rule: str | None
    dedupe_key: str | None
    strategy: Strategy
    source: MemorySource
    ttl_days: int | None = None
    entities: tuple[Entity, ...] = ()

    @property
    def expires_at(self) -> datetime | None:
        """The end of the memory's time to live. None if it has none, if the end is after the last time that an event
        can have, or if the time of the turn is unknown."""
        said_at, days = self.source.said_at, None if is_undated(self.source.said_at) else self.ttl_days
        return None if days is None or days > (END_OF_TIME - said_at).days - 1 else said_at + timedelta(days=days)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A match that is not stored. reason: a code, for counts. detail: for people."""

    reason: str
    rule: str | None
    turn: Turn
    quote: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ExtractionResult:
    """The result of an extractor for some turns. entities: all entities that a model named, also those of its findings;
    () for the rules, whose findings contain their entities."""

    findings: tuple[Finding, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    entities: tuple[Entity, ...] = ()

    def counts(self) -> dict[str, int]:
        """Returns the number of rejections by reason. The result contains no text of the user, so it may be logged."""
        return dict(sorted(Counter(rejection.reason for rejection in self.rejections).items()))
