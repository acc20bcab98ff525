"""TextTasks without a language model. It extracts, it never writes: every sentence was said by somebody."""

import time
from collections.abc import Sequence

from turnlog.agent.models import extract, keywords
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.prompts import prompt_hash
from turnlog.agent.models.protocol import CountTokens, Embedder, Topics, Usage, Vectors, Written

MODEL = "offline-extractive"
PROVIDER = "offline"
VERSION = "extractive-1"  # raise it when the method changes: it stands in for a prompt


class OfflineTextTasks:
    """Summary by sentence centrality, topics by keyword extraction, for English and Chinese. Deterministic.

    embedder: local or remote; None, or one that fails, means TF-IDF centrality. At most max_embedded sentences
    are embedded for one summary. `language` changes nothing: an extract speaks the language of the conversation.
    """

    def __init__(self, count_tokens: CountTokens, embedder: Embedder | None = None, max_embedded: int = 60) -> None:
        self._count, self._embedder, self._max_embedded = count_tokens, embedder, max_embedded

    async def summarise(
        self, messages: Sequence[str], previous_summary: str, max_tokens: int, language: str | None = None
    ) -> Written:
        return await self._extracted(messages, previous_summary, max_tokens, "summary")

    async def compress(self, summary: str, target_tokens: int, language: str | None = None) -> Written:
        return await self._extracted([], summary, target_tokens, "compress")

    async def topics(self, texts: Sequence[str], limit: int) -> Topics:
        started = time.perf_counter()
        found = keywords.topics(texts, limit)
        usage = self._usage(started, "".join(texts), " ".join(found))
        return Topics(found, prompt_hash(f"{VERSION} topics"), usage)

    async def _extracted(self, messages: Sequence[str], previous: str, max_tokens: int, task: str) -> Written:
        started = time.perf_counter()
        found = extract.shortlist(extract.candidates(messages, previous), self._max_embedded)
        vectors = await self._vectors([sentence.text for sentence in found])
        text = extract.choose(found, vectors, max_tokens, self._count)
        usage = self._usage(started, "\n".join([previous, *messages]), text)
        return Written(text, prompt_hash(f"{VERSION} {task}"), usage)

    async def _vectors(self, texts: list[str]) -> Vectors:
        if self._embedder is None or len(texts) < 3:
            return extract.tfidf(texts)
        try:
            return await self._embedder.embed_passages(texts)
        except ModelError:
            return extract.tfidf(texts)  # a summary must not wait for an embedding server

    def _usage(self, started: float, read: str, written: str) -> Usage:
        return Usage(
            provider=PROVIDER,
            model=MODEL,
            tokens_in=self._count(read),
            tokens_out=self._count(written),
            latency_ms=(time.perf_counter() - started) * 1000,
        )
