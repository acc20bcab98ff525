"""Events that reactors and the agent derive from turns: summaries, topics, vectors, receipts, usage."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from turnlog.events.contracts.base import ERASED, Amount, Derivation, EventContract, Frozen


class SummaryWritten(EventContract):
    """The whole rolling summary of a thread; it replaces the one before."""

    PERSONAL: ClassVar[dict[str, Any]] = {"summary": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["summary_written"] = "summary_written"
    summary: str
    message_count: int = Field(ge=0)
    covered_seq: int = Field(ge=0)
    derivation: Derivation


class TopicsTagged(EventContract):
    """How often each topic is mentioned in the turns `derivation.from_seq … through_seq`. Read models add this up."""

    PERSONAL: ClassVar[dict[str, Any]] = {"topics": {}}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["topics_tagged"] = "topics_tagged"
    topics: dict[str, int]
    derivation: Derivation


class ChunksEmbedded(EventContract):
    """The vectors of these chunks are stored in the embedding cache under `model`; memory_vectors reads them there."""

    PERSONAL: ClassVar[dict[str, Any]] = {"chunk_ids": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset({"chunk_ids"})
    type: Literal["chunks_embedded"] = "chunks_embedded"
    model: str
    dimensions: int = Field(gt=0)
    chunk_ids: tuple[str, ...]


class HistoryPruned(EventContract):
    """Turns up to `through_seq` were removed from the conversation state; log and transcript keep them."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["history_pruned"] = "history_pruned"
    through_seq: int = Field(ge=0)
    removed: int = Field(ge=0)
    remaining: int = Field(ge=0)


Span = tuple[int, int]
MOST_SPANS = 24
MOST_CHUNKS = 64


def spans_of(seqs: Iterable[int], positions: Mapping[int, int] | None = None) -> tuple[Span, ...]:
    """Returns the turns with these sequences as spans (first, last), in order. positions: the position of each turn in
    its thread, by sequence; turns at adjacent positions are in one span. Without it, consecutive sequences are in one
    span."""
    ordered = sorted(set(seqs))
    places = ordered if positions is None else [positions[seq] for seq in ordered]
    firsts = [at for at in range(len(ordered)) if not at or places[at] - places[at - 1] != 1]
    return tuple((ordered[at], ordered[end - 1]) for at, end in pairwise((*firsts, len(ordered))))


class TurnSpans(Frozen):
    """A set of turns of one thread. spans: (first, last) sequences, both included. count: the exact number of turns.

    New receipts have at most MOST_SPANS spans. If more are needed, the oldest are merged into one, which then also
    covers turns that are not in the set.
    """

    count: int = 0
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, seqs: Iterable[int], positions: Mapping[int, int] | None = None, most: int = MOST_SPANS) -> "TurnSpans":
        """Returns the spans of these turns. positions: see spans_of."""
        meant = set(seqs)
        spans = spans_of(meant, positions)
        if len(spans) > most:
            spans = ((spans[0][0], spans[-most][1]), *spans[1 - most :])
        return cls(count=len(meant), spans=spans)


class ReceiptTier(Frozen):
    """The contents of one tier: its turns, its tokens, and for tier 1 the sources of its text."""

    tier: Literal["all", "1", "2", "3"]
    tokens: int
    turns: TurnSpans = TurnSpans()
    summary_seq: int | None = None
    topics: tuple[str, ...] = ()


class ReceiptSettings(Frozen):
    """The settings that shaped a context, so that it can be built again when they have changed.

    strict_tiers: None if it was off.
    """

    full_recent_count: int
    condensed_tool_max: int
    keep_thinking: bool
    enable_summary: bool
    strict_tiers: bool | None = None


class KnownOfUser(Frozen):
    """The lines besides the memories in the prompt's block of long-term memories. message_count: number of turns in the
    conversation. turns: ids of the chunks that were shown from the user's other conversations; None if none were."""

    preferences: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    message_count: int = 0
    turns: tuple[str, ...] | None = None


class AnswerReceipt(EventContract):
    """Exactly what the model saw for one answer. v1 had no system_prompt and no settings, v2 no notes, v3 no known,
    v4 no doubt; v5 listed every turn.

    Its size does not grow with the thread: turns are stored as spans, and `turnlog context THREAD --as-of SEQ` builds
    the context again. state: the exact spans of all turns that the context was built from. recalled_chunks: ids of the
    chunks that were shown from other conversations or fetched by the recall tool, at most MOST_CHUNKS.

    as_of_seq: the context contains nothing later. budget: in tokens, without system prompt and tools. relevant:
    sequences of turns that came first in tier 2 because they are relevant to the question, best first. notes: the
    texts right before the question, if the context was not built from the thread in the log alone, as in the
    conversation graph; such a context is built again from `state`. Otherwise None. known: the other lines shown with
    the memories; None without a block of memories. doubt: the line before the question that says that nothing
    found answers it; None if there was none, or if it is the last of the notes.
    """

    VERSION: ClassVar[int] = 6
    PERSONAL: ClassVar[dict[str, Any]] = {
        "tiers": (),
        "recalled_chunks": (),
        "system_prompt": None,
        "notes": None,
        "known": None,
    }
    MIXES_SPEAKERS: ClassVar[bool] = True
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset({"recalled_chunks", "system_prompt", "tiers", "notes", "known"})
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
    dropped: TurnSpans = TurnSpans()
    state: tuple[Span, ...] = ()
    context_hash: str
    system_prompt: str | None = None
    settings: ReceiptSettings | None = None
    relevant: tuple[int, ...] = ()
    notes: tuple[str, ...] | None = None
    known: KnownOfUser | None = None
    doubt: str | None = None

    def has_words(self) -> bool:
        """Returns whether the receipt contains topics, notes or known facts; its other personal fields are numbers and
        ids."""
        return bool(self.notes or self.known or any(tier.topics for tier in self.tiers))


class UsageMetered(EventContract):
    """Tokens, cost, latency and outcome of one piece of model work.

    price_known: True if the price of the model was known; None in events of v1.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {}
    QUOTES_ERRORS: ClassVar[bool] = True
    type: Literal["usage_metered"] = "usage_metered"
    purpose: Literal["answer", "summary", "topics", "embedding", "compression", "extraction", "compaction"]
    agent: str | None = None
    provider: str
    model: str
    calls: Amount = 1
    tokens_in: Amount = 0
    tokens_out: Amount = 0
    cost_usd: float = Field(default=0.0, ge=0, le=10**6)
    price_known: bool | None = None
    latency_ms: float = Field(default=0.0, ge=0, le=10**12)
    error: str | None = None
