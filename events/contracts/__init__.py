"""The events: frozen contracts in one discriminated union (L2). The wire form is in codec.py.

A contract never changes once released: a new shape is a new VERSION with an upcaster (upcasters.py) and
the old golden file stays. `type` is the subject's last token and the CloudEvents type without its prefix.

What a type means to the rest of turnlog (personal, derived from several speakers, a removal …) is a class variable of
its contract (base.py). Personal fields are encrypted by sealing.py; roles, tokens, ids and times stay clear.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, get_args
from uuid import UUID

from pydantic import Field
from uuid_utils.compat import uuid7

from turnlog.events.contracts.base import ERASED, Derivation, EventContract, Frozen, Moment
from turnlog.events.contracts.conversation import (
    AnswerRequested,
    Block,
    Content,
    ForkedSummary,
    ImageBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ThreadDeleted,
    ThreadForked,
    ThreadOpened,
    ThreadRenamed,
    ToolCall,
    ToolResultBlock,
    ToolUseBlock,
    TurnRecorded,
)
from turnlog.events.contracts.derived import (
    AnswerReceipt,
    ChunksEmbedded,
    HistoryPruned,
    KnownOfUser,
    ReceiptSettings,
    ReceiptTier,
    SummaryWritten,
    TopicsTagged,
    UsageMetered,
)
from turnlog.events.contracts.langgraph import (
    Blob,
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    ListGrowth,
    PendingWrite,
    StoreItemDeleted,
    StoreItemPut,
)
from turnlog.events.contracts.memory import (
    MAX_KEY_CHARS,
    MAX_TYPE_CHARS,
    WORDS_OF_A_MEMORY,
    Answer,
    CompactionUndone,
    EndReason,
    EntitiesCleared,
    EntitiesFound,
    Entity,
    EntityRelation,
    Interval,
    MemoriesAccessed,
    MemoriesCompacted,
    MemoriesEmbedded,
    MemoriesExtracted,
    MemoriesReviewed,
    MemoriesRevised,
    Memory,
    MemoryArchived,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryKind,
    MemoryRated,
    MemoryRecorded,
    MemorySource,
    Origin,
    PreferencesSet,
    Share,
    Strategy,
    UserPreferences,
)
from turnlog.events.contracts.operations import (
    ArchivedEvent,
    Erased,
    JobRan,
    ThreadArchived,
    ThreadRestored,
    UserErased,
)
from turnlog.events.contracts.session import (
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
    SessionCreated,
    SessionUpdated,
)

__all__ = [
    "ARCHIVING",
    "CONTRACTS",
    "ERASED",
    "MAX_KEY_CHARS",
    "MAX_TYPE_CHARS",
    "REMOVALS",
    "WORDS_OF_A_MEMORY",
    "Answer",
    "AnswerReceipt",
    "AnswerRequested",
    "ArchivedEvent",
    "Blob",
    "Block",
    "CheckpointSaved",
    "CheckpointWritesSaved",
    "CheckpointsDropped",
    "ChunksEmbedded",
    "CompactionUndone",
    "Content",
    "Derivation",
    "EndReason",
    "EntitiesCleared",
    "EntitiesFound",
    "Entity",
    "EntityRelation",
    "Erased",
    "Event",
    "EventContract",
    "EventData",
    "ForkedSummary",
    "Frozen",
    "HistoryPruned",
    "ImageBlock",
    "Interval",
    "JobRan",
    "KnownOfUser",
    "ListGrowth",
    "MemoriesAccessed",
    "MemoriesCompacted",
    "MemoriesEmbedded",
    "MemoriesExtracted",
    "MemoriesReviewed",
    "MemoriesRevised",
    "Memory",
    "MemoryArchived",
    "MemoryConfirmed",
    "MemoryConflictAnswered",
    "MemoryConflictRaised",
    "MemoryForgotten",
    "MemoryKind",
    "MemoryRated",
    "MemoryRecorded",
    "MemorySource",
    "Moment",
    "Origin",
    "PendingWrite",
    "PreferencesSet",
    "ReceiptSettings",
    "ReceiptTier",
    "Recorded",
    "Role",
    "SegmentCheckpointFailed",
    "SegmentCheckpointRequested",
    "SegmentCheckpointed",
    "SegmentRules",
    "SessionCreated",
    "SessionUpdated",
    "Share",
    "StoreItemDeleted",
    "StoreItemPut",
    "Strategy",
    "SummaryWritten",
    "TextBlock",
    "ThinkingBlock",
    "ThreadArchived",
    "ThreadDeleted",
    "ThreadForked",
    "ThreadOpened",
    "ThreadRenamed",
    "ThreadRestored",
    "ToolCall",
    "ToolResultBlock",
    "ToolUseBlock",
    "TopicsTagged",
    "TurnRecorded",
    "UsageMetered",
    "UserErased",
    "UserPreferences",
]


EventData = Annotated[
    ThreadOpened
    | ThreadRenamed
    | ThreadDeleted
    | ThreadForked
    | TurnRecorded
    | AnswerRequested
    | SummaryWritten
    | TopicsTagged
    | ChunksEmbedded
    | HistoryPruned
    | AnswerReceipt
    | UsageMetered
    | SessionCreated
    | SessionUpdated
    | SegmentCheckpointRequested
    | SegmentCheckpointed
    | SegmentCheckpointFailed
    | CheckpointSaved
    | CheckpointWritesSaved
    | CheckpointsDropped
    | StoreItemPut
    | StoreItemDeleted
    | MemoryRecorded
    | MemoryConfirmed
    | MemoriesRevised
    | MemoryRated
    | MemoryArchived
    | MemoryForgotten
    | MemoryConflictRaised
    | MemoryConflictAnswered
    | MemoriesAccessed
    | MemoriesEmbedded
    | MemoriesReviewed
    | MemoriesCompacted
    | CompactionUndone
    | EntitiesFound
    | EntitiesCleared
    | PreferencesSet
    | MemoriesExtracted
    | JobRan
    | ThreadArchived
    | ThreadRestored
    | UserErased
    | Erased,
    Field(discriminator="type"),
]

_UNION: tuple[type[EventContract], ...] = get_args(get_args(EventData)[0])
CONTRACTS: dict[str, type[EventContract]] = {c.model_fields["type"].default: c for c in _UNION}
REMOVALS = frozenset(name for name, contract in CONTRACTS.items() if contract.REMOVES)
ARCHIVING = frozenset(name for name, contract in CONTRACTS.items() if contract.ARCHIVES)


class Event(Frozen):
    """One fact about one thread, as producers make it; its place in the log comes with Recorded."""

    id: UUID = Field(default_factory=uuid7)
    source: str = "turnlog"
    time: Moment = Field(default_factory=lambda: datetime.now(UTC))
    tenant: str = "default"
    thread: str
    user: str | None = None
    causation: UUID | None = None
    correlation: UUID | None = None
    traceparent: str | None = None
    data: EventData

    @property
    def type(self) -> str:
        return self.data.type


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its place in the log: stream sequence, partition and the time JetStream stored it."""

    event: Event
    seq: int
    partition: int
    stored_at: datetime
