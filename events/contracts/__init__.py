"""Defines the events as frozen contracts in one discriminated union. codec.py defines the wire format.

A released contract never changes: a new shape is a new VERSION with an upcaster (upcasters.py), and the old golden file
stays. `type` is the subject's last token and the CloudEvents type without its prefix.

Class variables of a contract (base.py) tell what its type means to the rest of turnlog: whether it has personal fields,
whether several speakers' words are in them, whether it removes rows, and so on. sealing.py encrypts personal fields;
roles, tokens, ids and times stay unencrypted.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, get_args
from uuid import UUID

from pydantic import Field, model_validator
from uuid_utils.compat import uuid7

from turnlog.events.contracts.base import ERASED as ERASED
from turnlog.events.contracts.base import Derivation as Derivation
from turnlog.events.contracts.base import EventContract as EventContract
from turnlog.events.contracts.base import Frozen as Frozen
from turnlog.events.contracts.base import Moment as Moment
from turnlog.events.contracts.conversation import AnswerRequested as AnswerRequested
from turnlog.events.contracts.conversation import Block as Block
from turnlog.events.contracts.conversation import Content as Content
from turnlog.events.contracts.conversation import ForkedSummary as ForkedSummary
from turnlog.events.contracts.conversation import ImageBlock as ImageBlock
from turnlog.events.contracts.conversation import ParticipantRole as ParticipantRole
from turnlog.events.contracts.conversation import ParticipantSet as ParticipantSet
from turnlog.events.contracts.conversation import Role as Role
from turnlog.events.contracts.conversation import TextBlock as TextBlock
from turnlog.events.contracts.conversation import ThinkingBlock as ThinkingBlock
from turnlog.events.contracts.conversation import ThreadDeleted as ThreadDeleted
from turnlog.events.contracts.conversation import ThreadForked as ThreadForked
from turnlog.events.contracts.conversation import ThreadOpened as ThreadOpened
from turnlog.events.contracts.conversation import ThreadRenamed as ThreadRenamed
from turnlog.events.contracts.conversation import ToolCall as ToolCall
from turnlog.events.contracts.conversation import ToolResultBlock as ToolResultBlock
from turnlog.events.contracts.conversation import ToolUseBlock as ToolUseBlock
from turnlog.events.contracts.conversation import TurnRecorded as TurnRecorded
from turnlog.events.contracts.derived import AnswerReceipt as AnswerReceipt
from turnlog.events.contracts.derived import ChunksEmbedded as ChunksEmbedded
from turnlog.events.contracts.derived import HistoryPruned as HistoryPruned
from turnlog.events.contracts.derived import KnownOfUser as KnownOfUser
from turnlog.events.contracts.derived import ReceiptSettings as ReceiptSettings
from turnlog.events.contracts.derived import ReceiptTier as ReceiptTier
from turnlog.events.contracts.derived import Span as Span
from turnlog.events.contracts.derived import SummaryWritten as SummaryWritten
from turnlog.events.contracts.derived import TopicsTagged as TopicsTagged
from turnlog.events.contracts.derived import TurnSpans as TurnSpans
from turnlog.events.contracts.derived import UsageMetered as UsageMetered
from turnlog.events.contracts.derived import spans_of as spans_of
from turnlog.events.contracts.langgraph import Blob as Blob
from turnlog.events.contracts.langgraph import CheckpointSaved as CheckpointSaved
from turnlog.events.contracts.langgraph import CheckpointsDropped as CheckpointsDropped
from turnlog.events.contracts.langgraph import CheckpointWritesSaved as CheckpointWritesSaved
from turnlog.events.contracts.langgraph import ListGrowth as ListGrowth
from turnlog.events.contracts.langgraph import PendingWrite as PendingWrite
from turnlog.events.contracts.langgraph import StoreItemDeleted as StoreItemDeleted
from turnlog.events.contracts.langgraph import StoreItemPut as StoreItemPut
from turnlog.events.contracts.memory import MAX_KEY_CHARS as MAX_KEY_CHARS
from turnlog.events.contracts.memory import MAX_TYPE_CHARS as MAX_TYPE_CHARS
from turnlog.events.contracts.memory import WORDS_OF_A_MEMORY as WORDS_OF_A_MEMORY
from turnlog.events.contracts.memory import Answer as Answer
from turnlog.events.contracts.memory import CompactionUndone as CompactionUndone
from turnlog.events.contracts.memory import Comparison as Comparison
from turnlog.events.contracts.memory import EndReason as EndReason
from turnlog.events.contracts.memory import EntitiesCleared as EntitiesCleared
from turnlog.events.contracts.memory import EntitiesFound as EntitiesFound
from turnlog.events.contracts.memory import Entity as Entity
from turnlog.events.contracts.memory import EntityRelation as EntityRelation
from turnlog.events.contracts.memory import Interval as Interval
from turnlog.events.contracts.memory import MemoriesAccessed as MemoriesAccessed
from turnlog.events.contracts.memory import MemoriesCompacted as MemoriesCompacted
from turnlog.events.contracts.memory import MemoriesEmbedded as MemoriesEmbedded
from turnlog.events.contracts.memory import MemoriesExtracted as MemoriesExtracted
from turnlog.events.contracts.memory import MemoriesReviewed as MemoriesReviewed
from turnlog.events.contracts.memory import MemoriesRevised as MemoriesRevised
from turnlog.events.contracts.memory import Memory as Memory
from turnlog.events.contracts.memory import MemoryArchived as MemoryArchived
from turnlog.events.contracts.memory import MemoryCompared as MemoryCompared
from turnlog.events.contracts.memory import MemoryConfirmed as MemoryConfirmed
from turnlog.events.contracts.memory import MemoryConflictAnswered as MemoryConflictAnswered
from turnlog.events.contracts.memory import MemoryConflictRaised as MemoryConflictRaised
from turnlog.events.contracts.memory import MemoryForgotten as MemoryForgotten
from turnlog.events.contracts.memory import MemoryKind as MemoryKind
from turnlog.events.contracts.memory import MemoryRated as MemoryRated
from turnlog.events.contracts.memory import MemoryRecorded as MemoryRecorded
from turnlog.events.contracts.memory import MemorySource as MemorySource
from turnlog.events.contracts.memory import Origin as Origin
from turnlog.events.contracts.memory import PreferencesSet as PreferencesSet
from turnlog.events.contracts.memory import ProfileWritten as ProfileWritten
from turnlog.events.contracts.memory import SecretPolicy as SecretPolicy
from turnlog.events.contracts.memory import Share as Share
from turnlog.events.contracts.memory import Strategy as Strategy
from turnlog.events.contracts.memory import UserPreferences as UserPreferences
from turnlog.events.contracts.operations import AgentConfigured as AgentConfigured
from turnlog.events.contracts.operations import AgentSwitched as AgentSwitched
from turnlog.events.contracts.operations import ApiKeyCreated as ApiKeyCreated
from turnlog.events.contracts.operations import ApiKeyRevoked as ApiKeyRevoked
from turnlog.events.contracts.operations import ArchivedEvent as ArchivedEvent
from turnlog.events.contracts.operations import Erased as Erased
from turnlog.events.contracts.operations import EventRedacted as EventRedacted
from turnlog.events.contracts.operations import JobRan as JobRan
from turnlog.events.contracts.operations import LimitName as LimitName
from turnlog.events.contracts.operations import LimitsChanged as LimitsChanged
from turnlog.events.contracts.operations import Plan as Plan
from turnlog.events.contracts.operations import ThreadArchived as ThreadArchived
from turnlog.events.contracts.operations import ThreadRestored as ThreadRestored
from turnlog.events.contracts.operations import TurnRedacted as TurnRedacted
from turnlog.events.contracts.operations import TurnsExpired as TurnsExpired
from turnlog.events.contracts.operations import UserErased as UserErased
from turnlog.events.contracts.origin import TurnOrigin as TurnOrigin
from turnlog.events.contracts.runs import MAX_DEPTH as MAX_DEPTH
from turnlog.events.contracts.runs import PlannedCall as PlannedCall
from turnlog.events.contracts.runs import RunDelegated as RunDelegated
from turnlog.events.contracts.runs import RunPlanned as RunPlanned
from turnlog.events.contracts.runs import RunSolved as RunSolved
from turnlog.events.contracts.runs import RunToolAnswered as RunToolAnswered
from turnlog.events.contracts.runs import RunToolCalled as RunToolCalled
from turnlog.events.contracts.session import SegmentCheckpointed as SegmentCheckpointed
from turnlog.events.contracts.session import SegmentCheckpointFailed as SegmentCheckpointFailed
from turnlog.events.contracts.session import SegmentCheckpointRequested as SegmentCheckpointRequested
from turnlog.events.contracts.session import SegmentRules as SegmentRules
from turnlog.events.contracts.session import SessionCreated as SessionCreated
from turnlog.events.contracts.session import SessionUpdated as SessionUpdated

EventData = Annotated[
    ThreadOpened
    | ThreadRenamed
    | ThreadDeleted
    | ThreadForked
    | ParticipantSet
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
    | MemoryCompared
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
    | ProfileWritten
    | MemoriesExtracted
    | AgentConfigured
    | AgentSwitched
    | ApiKeyCreated
    | ApiKeyRevoked
    | RunPlanned
    | RunToolCalled
    | RunToolAnswered
    | RunDelegated
    | RunSolved
    | JobRan
    | LimitsChanged
    | ThreadArchived
    | ThreadRestored
    | UserErased
    | EventRedacted
    | TurnRedacted
    | TurnsExpired
    | Erased,
    Field(discriminator="type"),
]

_UNION: tuple[type[EventContract], ...] = get_args(get_args(EventData)[0])
CONTRACTS: dict[str, type[EventContract]] = {c.model_fields["type"].default: c for c in _UNION}
REMOVALS = frozenset(name for name, contract in CONTRACTS.items() if contract.REMOVES)
ARCHIVING = frozenset(name for name, contract in CONTRACTS.items() if contract.ARCHIVES)


class Event(Frozen):
    """One event of one thread, as a producer makes it. Recorded adds its position in the log."""

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

    @model_validator(mode="after")
    def _with_origin(self) -> "Event":
        """Sets the origin of a turn that has none, both when it is written and when an old turn is read."""
        if isinstance(self.data, TurnRecorded) and self.data.origin is None:
            self.__dict__["data"] = self.data.of(self.user)
        return self

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
