"""Derives summaries and topics of a thread with a model; answers are cached by their input, so that equal inputs need
only one call."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from turnlog.agent.context import TokenCounter
from turnlog.agent.context.cut import cut_end
from turnlog.agent.models.cached_calls import Owner, key_of, once
from turnlog.agent.models.protocol import TextTasks, Topics, Usage, Written
from turnlog.agent.models.spending_limit import Ledger
from turnlog.projectors.engine.writer import Connection

PIECE_TOKENS = 6_000
PIECE_TEXTS = 60
MAX_TOPICS = 8


@dataclass(frozen=True, slots=True)
class ModelCall:
    """An answered call of a model, made now or before a crash. key: hash of its input.

    extracted: the answer was refused and an offline extract is used instead.
    """

    key: bytes
    usage: Usage
    extracted: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """A result with its calls. It has either a text (a summary) or topics."""

    text: str
    topics: dict[str, int]
    prompt_hash: str
    calls: tuple[ModelCall, ...]


@dataclass(slots=True)
class Deriver:
    """Runs text tasks for one thread within the budget; every answer is cached immediately.

    limit: maximum number of tokens in a summary. owner: the owner of the texts that the models read. calls: all
    answered calls so far, including those of work that failed later.
    """

    tasks: TextTasks
    model: str
    counter: TokenCounter
    limit: int
    ledger: Ledger
    conn: Connection
    owner: Owner
    calls: list[ModelCall] = field(default_factory=list)

    async def summary(self, texts: Sequence[str], previous: str) -> Derived:
        """Returns the rolling summary of the previous summary and the texts. If both together exceed the limit, the old
        summary is compressed to a third; if that is not enough, everything is compressed again, and any excess is cut
        off.

        Raises ModelError, RetryLater.
        """
        first = len(self.calls)
        text, prompt_hash = previous, ""
        for piece in pieces(texts, self.counter.text):
            work = partial(self.tasks.summarise, piece, "", self.limit // 2)
            new = await self._once(("summarise", *piece), work)
            text, prompt_hash = await self._joined(text, new["text"]), new["prompt_hash"]
        return Derived(text, {}, prompt_hash, tuple(self.calls[first:]))

    async def topics(self, texts: Sequence[str]) -> Derived:
        """Returns topics with the number of their mentions in all texts. Raises ModelError, RetryLater."""
        first = len(self.calls)
        mentions: Counter[str] = Counter()
        prompt_hash = ""
        for piece in pieces(texts, self.counter.text):
            made = await self._once(("topics", *piece), partial(self.tasks.topics, piece, MAX_TOPICS))
            mentions.update(made["topics"])
            prompt_hash = made["prompt_hash"]
        return Derived("", dict(mentions), prompt_hash, tuple(self.calls[first:]))

    async def _joined(self, old: str, new: str) -> str:
        count = self.counter.text
        if old and count(old) + count(new) > self.limit:
            old = await self._compressed(old, max(1, count(old) // 3))
        text = f"{old}\n{new}" if old else new
        if count(text) > self.limit:  # a model may ignore the requested length
            text = cut_end(await self._compressed(text, self.limit), self.limit, self.counter)
        return text

    async def _compressed(self, text: str, target: int) -> str:
        compressed = await self._once(("compress", str(target), text), partial(self.tasks.compress, text, target))
        return str(compressed["text"])

    async def _once(self, parts: tuple[str, ...], work: Callable[[], Awaitable[Written | Topics]]) -> dict[str, Any]:
        key = key_of(self.owner, self.model, parts)
        answer = await once(self.conn, self.ledger, self.owner, key, sum(map(self.counter.text, parts)), work)
        self.calls.append(ModelCall(key, Usage(**answer["usage"]), answer.get("extracted", False)))
        return answer


def pieces(texts: Sequence[str], count: Callable[[str], int]) -> list[list[str]]:
    """Returns the inputs of the calls: each has at most PIECE_TEXTS texts and PIECE_TOKENS tokens. A longer text is
    cut."""
    made: list[list[str]] = []
    size = PIECE_TOKENS
    for text in texts:
        text, length = _bounded(text, count)
        if not made or size + length > PIECE_TOKENS or len(made[-1]) == PIECE_TEXTS:
            made.append([])
            size = 0
        made[-1].append(text)
        size += length
    return made


def _bounded(text: str, count: Callable[[str], int]) -> tuple[str, int]:
    """Returns a prefix that fits into a piece (the whole text if it fits), and its number of tokens; long texts are cut
    before they are tokenised."""
    text = text[: PIECE_TOKENS * 6]
    while (length := count(text)) > PIECE_TOKENS:
        text = text[: len(text) * PIECE_TOKENS // (length + 1)]
    return text, length
