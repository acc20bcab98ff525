"""The events: frozen contracts in one discriminated union (L2). The wire form is in codec.py.

A contract never changes once released: a new shape is a new VERSION with an upcaster (upcasters.py) and
the old golden file stays. `type` is the subject's last token and the CloudEvents type without its prefix.

PERSONAL: the fields with words of or about a person, or a fingerprint of them, which sealing.py encrypts; each with the
tombstone that stands there when the person's key was destroyed. What counts (roles, tokens, ids, times) stays clear.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field
from uuid_utils.compat import uuid7

from turnlog.events.frozen import ERASED, Derivation, EventContract, Frozen
from turnlog.events.langgraph_contracts import (
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    StoreItemDeleted,
    StoreItemPut,
)
from turnlog.events.memory_contracts import (
    CompactionUndone,
    EntitiesFound,
    JobRan,
    MemoriesAccessed,
    MemoriesCompacted,
    MemoriesEmbedded,
    MemoriesExtracted,
    MemoriesReviewed,
    MemoriesRevised,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRated,
    MemoryRecorded,
    ThreadArchived,
    ThreadRestored,
    UserErased,
)
from turnlog.events.session_contracts import (
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SessionCreated,
    SessionUpdated,
)


class TextBlock(Frozen):
    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(Frozen):
    """Reasoning of a model; the condenser drops it (A 4.3)."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str | None = None


class ImageBlock(Frozen):
    """An image by reference (`url`, also a data: URL)."""

    type: Literal["image"] = "image"
    url: str
    media_type: str | None = None


class ToolUseBlock(Frozen):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


class ToolResultBlock(Frozen):
    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: str | tuple[TextBlock | ImageBlock, ...] = ""
    is_error: bool = False


Block = Annotated[TextBlock | ThinkingBlock | ImageBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
Content = str | tuple[Block, ...]
Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(Frozen):
    """A call as the OpenAI chat API writes it; `arguments` is the JSON text the model produced."""

    id: str
    name: str
    arguments: str = "{}"


class ThreadOpened(EventContract):
    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"label": ERASED}
    type: Literal["thread_opened"] = "thread_opened"
    label: str | None = None


class ThreadRenamed(EventContract):
    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"label": ERASED}
    type: Literal["thread_renamed"] = "thread_renamed"
    label: str


class ThreadDeleted(EventContract):
    """The user deleted the conversation: every read model drops its rows (A 1.3); the log keeps the events."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["thread_deleted"] = "thread_deleted"


class TurnRecorded(EventContract):
    """One message of a conversation. v1 had `text` instead of `content` and one `tokens` number.

    source_id: the id under which an importer found the turn (LoCoMo's dia_id, a message id).
    name: the speaker, where a role is not enough. tokens_*: as the provider counted them.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {"content": ERASED, "name": None, "tool_calls": ()}
    type: Literal["turn_recorded"] = "turn_recorded"
    role: Role
    content: Content = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    agent: str | None = None
    model: str | None = None
    tokens_in: int | None = Field(default=None, ge=0)
    tokens_out: int | None = Field(default=None, ge=0)
    latency_ms: float | None = Field(default=None, ge=0)
    source_id: str | None = None


class ForkedSummary(Frozen):
    """The rolling summary that a fork begins with."""

    summary: str
    message_count: int
    covered_seq: int
    model: str


class ThreadForked(EventContract):
    """This thread begins with the turns of `parent` up to at_seq, which stay where they are (C10).

    What was derived from them up to then comes along: summary, topics with their mentions, how far topics were
    looked for, and the pruning. Turn counts are those of the past.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"label": ERASED, "summary": None, "topics": {}}
    type: Literal["thread_forked"] = "thread_forked"
    parent: str
    at_seq: int = Field(ge=1)
    label: str | None = None
    message_count: int = Field(default=0, ge=0)
    user_message_count: int = Field(default=0, ge=0)
    assistant_message_count: int = Field(default=0, ge=0)
    summary: ForkedSummary | None = None
    topics: dict[str, int] = Field(default_factory=dict)
    tagged_through: int = Field(default=0, ge=0)
    pruned_through: int = Field(default=0, ge=0)


class AnswerRequested(EventContract):
    """Somebody waits for an answer to the user turn `turn_id`; the agent consumer answers it once (G8)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"system_prompt": None}
    type: Literal["answer_requested"] = "answer_requested"
    turn_id: UUID
    model: str | None = None
    system_prompt: str | None = None


class SummaryWritten(EventContract):
    """The rolling summary of a thread, whole: it replaces the one before (C6, D 2.1)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"summary": ERASED}
    type: Literal["summary_written"] = "summary_written"
    summary: str
    message_count: int = Field(ge=0)
    covered_seq: int = Field(ge=0)
    derivation: Derivation


class TopicsTagged(EventContract):
    """Topics found in the turns `derivation.from_seq … through_seq`; mentions adds up per topic (A 1.2)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"topics": {}}
    type: Literal["topics_tagged"] = "topics_tagged"
    topics: dict[str, int]
    derivation: Derivation


class ChunksEmbedded(EventContract):
    """The vectors of these chunks stand in the embedding cache under `model` (L7); P5 takes them from there."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"chunk_ids": ()}
    type: Literal["chunks_embedded"] = "chunks_embedded"
    model: str
    dimensions: int = Field(gt=0)
    chunk_ids: tuple[str, ...]


class HistoryPruned(EventContract):
    """Turns up to `through_seq` left the conversation state; log and transcript keep them (A 3.1, C5)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["history_pruned"] = "history_pruned"
    through_seq: int = Field(ge=0)
    removed: int = Field(ge=0)
    remaining: int = Field(ge=0)


class ReceiptTier(Frozen):
    """What one tier held: turns by sequence, its tokens, and for tier 1 the sources of its text."""

    tier: Literal["all", "1", "2", "3"]
    tokens: int
    seqs: tuple[int, ...] = ()
    summary_seq: int | None = None
    topics: tuple[str, ...] = ()


class ReceiptSettings(Frozen):
    """The settings that shaped a context, so that it can be built again when they have changed."""

    full_recent_count: int
    condensed_tool_max: int
    keep_thinking: bool
    enable_summary: bool


class AnswerReceipt(EventContract):
    """Exactly what the model saw for one answer (C10). v1 had no system_prompt and no settings, v2 no notes.

    as_of_seq: nothing later went into the context; budget: tokens, after system prompt and tools. relevant: turns
    that came first in tier 2 for being relevant to the question, best first (C8). notes: what stood right before the
    question, in words, where the context was built from a state of its own and not from the thread as it stands on
    the log (the conversation graph): then tiers and dropped_seqs name every turn of that state. Otherwise None.
    """

    VERSION: ClassVar[int] = 3
    PERSONAL: ClassVar[dict[str, Any]] = {"tiers": (), "recalled_chunks": (), "system_prompt": None, "notes": None}
    type: Literal["answer_receipt"] = "answer_receipt"
    request_id: UUID
    turn_id: UUID
    answer_ids: tuple[UUID, ...]
    as_of_seq: int
    model: str
    window: int
    budget: int
    tiers: tuple[ReceiptTier, ...]
    recalled_chunks: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    dropped_seqs: tuple[int, ...] = ()
    context_hash: str
    system_prompt: str | None = None
    settings: ReceiptSettings | None = None
    relevant: tuple[int, ...] = ()
    notes: tuple[str, ...] | None = None


class UsageMetered(EventContract):
    """Tokens, cost, latency and outcome of one piece of model work (P10)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["usage_metered"] = "usage_metered"
    purpose: Literal["answer", "summary", "topics", "embedding", "compression", "extraction", "compaction"]
    agent: str | None = None
    provider: str
    model: str
    calls: int = Field(default=1, ge=0)
    tokens_in: int = Field(default=0, ge=0)
    tokens_out: int = Field(default=0, ge=0)
    cost_usd: float = Field(default=0.0, ge=0)
    latency_ms: float = Field(default=0.0, ge=0)
    error: str | None = None


class Erased(EventContract):
    """The person's data in this thread must go from every read model, cache and index (M9)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["erased"] = "erased"
    reason: str | None = None


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
    | MemoryForgotten
    | MemoryConflictRaised
    | MemoryConflictAnswered
    | MemoriesAccessed
    | MemoriesEmbedded
    | MemoriesReviewed
    | MemoriesCompacted
    | CompactionUndone
    | EntitiesFound
    | MemoriesExtracted
    | JobRan
    | ThreadArchived
    | ThreadRestored
    | UserErased
    | Erased,
    Field(discriminator="type"),
]


class Event(Frozen):
    """One fact about one thread, as producers make it; its place in the log comes with Recorded."""

    id: UUID = Field(default_factory=uuid7)
    source: str = "turnlog"
    time: AwareDatetime
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
