"""What an extractor makes of turns: findings with their evidence, and what was refused, with the reason. Pure."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from turnlog.events.memory_contracts import Entity, MemoryKind, MemorySource, Origin, Strategy


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that may serve as evidence: the user's own, or a tool's result by opt-in. name: who spoke it."""

    thread: str
    seq: int
    event_id: UUID
    said_at: datetime
    text: str
    name: str | None = None
    is_tool: bool = False

    def source(self, quote: str) -> MemorySource:
        return MemorySource(thread=self.thread, seq=self.seq, event_id=self.event_id, quote=quote, said_at=self.said_at)


@dataclass(frozen=True, slots=True)
class Finding:
    """A memory as an extractor proposes it; conflicts are decided later (M5). key: template filled, in normal form."""

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
        return None if self.ttl_days is None else self.source.said_at + timedelta(days=self.ttl_days)


@dataclass(frozen=True, slots=True)
class Rejection:
    """What was nearly a memory. reason: one of few, to count by. detail: for a person who asks why."""

    reason: str
    rule: str | None
    turn: Turn
    quote: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of a look at some turns. entities: those that no finding is about."""

    findings: tuple[Finding, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    entities: tuple[Entity, ...] = ()

    def counts(self) -> dict[str, int]:
        """Rejections by reason, for the log: no words."""
        return dict(sorted(Counter(one.reason for one in self.rejections).items()))
