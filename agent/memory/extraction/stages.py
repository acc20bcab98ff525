"""Converts the results of both stages of the extraction to memories and events. Pure."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnlog.agent.memory.extraction.by_model import model_text
from turnlog.agent.memory.extraction.findings import ExtractionResult, Turn
from turnlog.agent.memory.extraction.proposals import candidates, entities
from turnlog.events.contracts import Derivation, EventData, MemoriesExtracted, Memory

ANOTHER_SPEAKER = "another-speaker"


@dataclass(frozen=True, slots=True)
class UserConversation:
    """Identifies the turns of one user in one conversation, the input of an extraction."""

    tenant: str
    user: str
    thread: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """Arguments of Memories.remember_many: candidates, and the events to append with them."""

    memories: list[Memory]
    extra: list[EventData]


@dataclass(frozen=True, slots=True)
class Span:
    """The sequences of the first and the last turn that a stage has read. others: number of turns left out because
    somebody else said them."""

    first: int
    last: int
    others: int = 0


def proposal(
    conversation: UserConversation,
    result: ExtractionResult,
    span: Span,
    stage: str,
    extractor: str,
    derivation: Derivation | None = None,
) -> Proposal:
    """Returns the memories and events to append. The events count all candidates as stored, because conflicts are
    decided later."""
    memories = candidates(conversation.tenant, conversation.user, result.findings)
    entity_events = [entity.model_copy(update={"derivation": derivation}) for entity in entities(result)]
    rejected = result.counts() | ({ANOTHER_SPEAKER: span.others} if span.others else {})
    done = MemoriesExtracted(
        conversation=conversation.thread,
        stage="llm" if stage == "llm" else "rules",
        from_seq=span.first,
        through_seq=span.last,
        extractor=extractor,
        found=len(result.findings),
        stored=len(memories),
        rejected=rejected,
        derivation=derivation,
    )
    return Proposal(memories, [*entity_events, done])


@dataclass(frozen=True, slots=True)
class Batch:
    """The turns for one call of a model. is_full: they reach the token limit of a batch."""

    turns: tuple[Turn, ...]
    tokens: int
    is_full: bool


def next_batch(turns: Sequence[Turn], limit: int, count: Callable[[str], int]) -> Batch:
    """Returns the shortest prefix of the turns with at least `limit` tokens of the user's own text, or all turns."""
    tokens = 0
    for number, turn in enumerate(turns, 1):
        tokens += min(limit, count(model_text(turn)[: limit * 8]))
        if tokens >= limit:
            return Batch(tuple(turns[:number]), tokens, True)
    return Batch(tuple(turns), tokens, False)


def request_parts(prompt_hash: str, user: str, turns: Sequence[Turn]) -> tuple[str, ...]:
    """Returns the parts of the cache key of a request to a model."""
    digests = (hashlib.sha256(turn.text.encode(errors="replace")).hexdigest() for turn in turns)
    named = (f"{turn.seq} {turn.event_id} {digest}" for turn, digest in zip(turns, digests, strict=True))
    return ("extract", prompt_hash, user, *named)
