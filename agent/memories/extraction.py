"""Both stages of the extraction on values (M2): turns in, what is to be written out. Pure but for the regex engine."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnlog.agent.memories.candidates import candidates, entities
from turnlog.agent.memories.findings import Looked, Turn
from turnlog.agent.memories.llm_extraction import words_of
from turnlog.events.contracts import EventData
from turnlog.events.frozen import Derivation
from turnlog.events.memory_contracts import MemoriesExtracted, Memory

SPEAKER = "another-speaker"


@dataclass(frozen=True, slots=True)
class Talk:
    """What one user said in one conversation."""

    tenant: str
    user: str
    thread: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """For Memories.remember_many: candidates, and the events that go with them."""

    memories: list[Memory]
    extra: list[EventData]


@dataclass(frozen=True, slots=True)
class Span:
    """Sequences that were looked at. others: turns left out because somebody else spoke them."""

    first: int
    last: int
    others: int = 0


def proposal(
    talk: Talk, looked: Looked, span: Span, stage: str, extractor: str, derivation: Derivation | None = None
) -> Proposal:
    """stored: how many memories are proposed; conflicts are decided after it."""
    made = candidates(talk.tenant, talk.user, looked.findings)
    found = [one.model_copy(update={"derivation": derivation}) for one in entities(looked)]
    rejected = looked.counts() | ({SPEAKER: span.others} if span.others else {})
    done = MemoriesExtracted(
        conversation=talk.thread,
        stage="llm" if stage == "llm" else "rules",
        from_seq=span.first,
        through_seq=span.last,
        extractor=extractor,
        found=len(looked.findings),
        stored=len(made),
        rejected=rejected,
        derivation=derivation,
    )
    return Proposal(made, [*found, done])


@dataclass(frozen=True, slots=True)
class Batch:
    """Turns for one call of a model. is_full: they have the tokens that a batch should have."""

    turns: tuple[Turn, ...]
    tokens: int
    is_full: bool


def cut(turns: Sequence[Turn], limit: int, count: Callable[[str], int]) -> Batch:
    """The shortest beginning of the turns with `limit` tokens of the user's words, or all of them."""
    tokens = 0
    for number, turn in enumerate(turns, 1):
        tokens += min(limit, count(words_of(turn)[: limit * 8]))
        if tokens >= limit:
            return Batch(tuple(turns[:number]), tokens, True)
    return Batch(tuple(turns), tokens, False)


def parts_of(prompt_hash: str, user: str, turns: Sequence[Turn]) -> tuple[str, ...]:
    """What tells one question to a model from another."""
    return ("extract", prompt_hash, user, *(f"{turn.seq} {turn.event_id} {_digest(turn.text)}" for turn in turns))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
