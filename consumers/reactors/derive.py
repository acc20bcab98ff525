"""Model work on a thread: summaries and topics, each cached by its input so that the same input is one call."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Jsonb

from turnlog.agent.context import TokenCounter
from turnlog.agent.models.protocol import TextTasks, Topics, Usage, Written
from turnlog.projectors.writer import Connection

PIECE_TOKENS = 6_000
MAX_TOPICS = 8
TOPIC_TEXTS = 60


@dataclass(frozen=True, slots=True)
class Derived:
    """A result with everything it took. text is a summary, topics a tagging; the other is empty."""

    text: str
    topics: dict[str, int]
    prompt_hash: str
    usages: tuple[Usage, ...]


class Deriver:
    """Runs text tasks; results wait in the cache until their event is stored."""

    def __init__(self, tasks: TextTasks, model: str, counter: TokenCounter, max_summary_tokens: int) -> None:
        self._tasks, self._model, self._counter, self._limit = tasks, model, counter, max_summary_tokens

    async def summary(self, conn: Connection, texts: Sequence[str], previous: str) -> Derived:
        """The rolling summary of the texts and the one before (A 3.1): the old one shrinks to a third when both
        together exceed the limit, and all of it again if that is not enough."""
        usages: list[Usage] = []
        text, prompt_hash = previous, ""
        for piece in pieces(texts, self._counter.text):
            new = await self._summarised(conn, piece, usages)
            prompt_hash = new.prompt_hash
            text = await self._joined(conn, text, new.text, usages)
        return Derived(text, {}, prompt_hash, tuple(usages))

    async def topics(self, conn: Connection, texts: Sequence[str]) -> Derived:
        usages: list[Usage] = []
        found: dict[str, int] = {}
        prompt_hash = ""
        for start in range(0, len(texts), TOPIC_TEXTS):
            part = list(texts[start : start + TOPIC_TEXTS])
            made = await self._tagged(conn, part, usages)
            prompt_hash = made.prompt_hash
            for topic, count in made.topics.items():
                found[topic] = found.get(topic, 0) + count
        return Derived("", found, prompt_hash, tuple(usages))

    async def _joined(self, conn: Connection, old: str, new: str, usages: list[Usage]) -> str:
        count = self._counter.text
        if old and count(old) + count(new) > self._limit:
            old = (await self._compressed(conn, old, max(1, count(old) // 3), usages)).text
        text = f"{old}\n{new}" if old else new
        if count(text) > self._limit:
            text = (await self._compressed(conn, text, self._limit, usages)).text
        return text

    async def _summarised(self, conn: Connection, texts: Sequence[str], usages: list[Usage]) -> Written:
        return await self._written(
            conn,
            ("summarise", *texts),
            lambda: self._tasks.summarise(texts, "", self._limit // 2),
            usages,
        )

    async def _compressed(self, conn: Connection, text: str, target: int, usages: list[Usage]) -> Written:
        return await self._written(
            conn, ("compress", str(target), text), lambda: self._tasks.compress(text, target), usages
        )

    async def _written(
        self, conn: Connection, key: tuple[str, ...], call: Callable[[], Awaitable[Written]], usages: list[Usage]
    ) -> Written:
        if cached := await _cached(conn, self._key(key)):
            return Written(cached["text"], cached["prompt_hash"], Usage(**cached["usage"]))
        made = await call()
        usages.append(made.usage)
        await _remember(conn, self._key(key), asdict(made))
        return made

    async def _tagged(self, conn: Connection, texts: Sequence[str], usages: list[Usage]) -> Topics:
        key = self._key(("topics", *texts))
        if cached := await _cached(conn, key):
            return Topics(cached["topics"], cached["prompt_hash"], Usage(**cached["usage"]))
        made = await self._tasks.topics(texts, MAX_TOPICS)
        usages.append(made.usage)
        await _remember(conn, key, asdict(made))
        return made

    def _key(self, parts: tuple[str, ...]) -> bytes:
        return hashlib.sha256("\x00".join((self._model, *parts)).encode(errors="replace")).digest()


def pieces(texts: Sequence[str], count: Callable[[str], int]) -> list[list[str]]:
    """Runs of texts of at most PIECE_TOKENS tokens each (one text may be longer)."""
    made: list[list[str]] = []
    size = PIECE_TOKENS + 1
    for text in texts:
        length = count(text)
        if size + length > PIECE_TOKENS:
            made.append([])
            size = 0
        made[-1].append(text)
        size += length
    return made


async def _cached(conn: Connection, key: bytes) -> dict[str, Any] | None:
    rows = await conn.execute("SELECT response FROM model_cache WHERE request_hash = %s", (key,))
    found = await rows.fetchone()
    return dict(found[0]) if found else None


async def _remember(conn: Connection, key: bytes, response: dict[str, object]) -> None:
    await conn.execute(
        "INSERT INTO model_cache (request_hash, response) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        (key, Jsonb(response)),
    )
