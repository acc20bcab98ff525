"""Implements TextTasks without a language model. It only extracts, so every sentence is a quote."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnlog.agent.models import keywords
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.language import content_words, is_chinese, sentences, split_speaker
from turnlog.agent.models.prompts import prompt_hash
from turnlog.agent.models.protocol import CountTokens, Embedder, Topics, Usage, Vectors, Written
from turnlog.projectors.models.conversation.speech import OFFLINE_MODEL
from turnlog.projectors.models.terms import terms

RELEVANCE = 0.7  # the lambda of MMR; the rest is the penalty for repetition
OLD_BONUS = 0.3  # added to the score (0 to 1) of sentences of the previous summary


@dataclass(frozen=True, slots=True)
class Sentence:
    """A candidate sentence. order: its position in the conversation. old: it comes from the previous summary."""

    order: int
    text: str
    old: bool = False


def candidate_sentences(messages: Sequence[str], previous_summary: str) -> list[Sentence]:
    """Returns the sentences of the previous summary, then those of the messages with their speakers. Repetitions are
    left out, and so are questions and very short sentences of the messages."""
    old = [line.lstrip("-• ").strip() for line in previous_summary.splitlines()]
    texts = [(line, True) for line in old if line] + [(s, False) for m in messages for s in _said(m)]
    seen: set[str] = set()
    unique: list[Sentence] = []
    for text, is_old in texts:
        key = text.casefold()
        if key not in seen and (is_old or _says_something(text)):
            seen.add(key)
            unique.append(Sentence(len(unique), text, is_old))
    return unique


def _said(message: str) -> list[str]:
    speaker, text = split_speaker(message)
    return [f"{speaker}: {sentence}" if speaker else sentence for sentence in sentences(text)]


def _says_something(sentence: str) -> bool:
    _, text = split_speaker(sentence)
    question = text.rstrip().endswith(("?", "？"))
    return not question and len(content_words(text)) >= 2


def tfidf(texts: Sequence[str]) -> Vectors:
    """Returns TF-IDF rows of length 1 as float32 (n, vocabulary)."""
    counts = [Counter(terms(text)) for text in texts]
    frequency = Counter(term for count in counts for term in count)
    column = {term: i for i, term in enumerate(sorted(frequency))}
    rows = np.zeros((len(texts), max(1, len(column))), np.float32)
    for row, count in zip(rows, counts, strict=True):
        for term, n in count.items():
            row[column[term]] = (1 + math.log(n)) * math.log(1 + len(texts) / frequency[term])
    scaled: Vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return scaled


def shortlist(candidates: Sequence[Sentence], limit: int) -> list[Sentence]:
    """Returns at most `limit` candidates, those with the highest TF-IDF centrality, in their order; only these are
    embedded.

    At most half of them are old sentences, so that a long summary cannot exclude new facts.
    """
    if len(candidates) <= limit:
        return list(candidates)
    scores = _scores(candidates, tfidf([s.text for s in candidates]))
    ranked = sorted(candidates, key=lambda s: (-scores[s.order], s.order))
    old = [s for s in ranked if s.old][: limit // 2]
    new = [s for s in ranked if not s.old][: limit - len(old)]
    return sorted([*old, *new], key=lambda s: s.order)


def choose(candidates: Sequence[Sentence], vectors: Vectors, max_tokens: int, count: CountTokens) -> str:
    """Returns the summary: one line `- sentence` per sentence, in the order of the conversation, at most max_tokens. If
    no sentence fits, returns the beginning of the best one; "" without candidates."""
    if not candidates:
        return ""
    scores = _scores(candidates, vectors)
    similar = vectors @ vectors.T
    left, chosen = list(range(len(candidates))), list[int]()
    while left:
        best = max(left, key=lambda i: (_mmr(i, chosen, scores, similar), -i))
        left.remove(best)
        if count(_written(candidates, [*chosen, best])) <= max_tokens:
            chosen.append(best)
    if chosen:
        return _written(candidates, chosen)
    return cut(candidates[int(np.argmax(scores))].text, max_tokens, count)


def cut(text: str, max_tokens: int, count: CountTokens) -> str:
    """Returns the text, or its longest beginning that fits with an ellipsis, because a sentence may be longer than the
    summary."""
    if count(text) <= max_tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle] + "…") <= max_tokens else (low, middle - 1)
    return text[:low] + "…" if low else ""


def _written(candidates: Sequence[Sentence], chosen: Sequence[int]) -> str:
    return "\n".join(f"- {candidates[i].text}" for i in sorted(chosen))


def _scores(candidates: Sequence[Sentence], vectors: Vectors) -> Vectors:
    """Returns one score per sentence: half centrality and half information, together 0 to 1, plus OLD_BONUS for old
    sentences."""
    informative = np.array([_telling(s.text) for s in candidates], np.float32)
    bonus = np.array([OLD_BONUS if s.old else 0.0 for s in candidates], np.float32)
    total: Vectors = 0.5 * _centrality(vectors) + 0.5 * informative + bonus
    return total


def _telling(sentence: str) -> float:
    """Returns how informative a sentence is, 0 to 1: its number of content words divided by 8 (6 in Chinese), at most
    1. Up to four words with a capital or a digit, except the first word, count once more."""
    text = split_speaker(sentence)[1]
    words = len(content_words(text))
    named = sum(1 for word in text.split()[1:] if word[0].isupper() or any(c.isdigit() for c in word))
    # Six are enough in Chinese, which says more with fewer words and has no capitals.
    return min(1.0, (words + min(named, 4)) / (6 if is_chinese(text) else 8))


def _centrality(vectors: Vectors) -> Vectors:
    """Returns the mean similarity to all sentences, spread over 0 to 1 because similarities of embeddings are in a
    narrow range."""
    degree: Vectors = (vectors @ vectors.mean(axis=0)).astype(np.float32)
    low, high = float(degree.min()), float(degree.max())
    spread: Vectors = (degree - low) / (high - low) if high - low > 1e-9 else np.ones_like(degree)
    return spread


def _mmr(i: int, chosen: Sequence[int], scores: Vectors, similar: Vectors) -> float:
    repeats = max((float(similar[i, j]) for j in chosen), default=0.0)
    return RELEVANCE * float(scores[i]) - (1 - RELEVANCE) * repeats


MODEL = OFFLINE_MODEL
PROVIDER = "offline"
VERSION = "extractive-1"  # replaces the prompt hash; increase it when the method changes


class OfflineTextTasks:
    """Writes summaries by sentence centrality and finds topics by keyword extraction, for English and Chinese.
    Deterministic.

    embedder: local or remote; if it is None or fails, TF-IDF centrality is used. max_embedded: maximum number of
    sentences that are embedded for one summary. `language` has no effect, because an extract has the language of the
    conversation.
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
        topics = keywords.topics(texts, limit)
        usage = self._usage(started, "".join(texts), " ".join(topics))
        return Topics(topics, prompt_hash(f"{VERSION} topics"), usage)

    async def _extracted(self, messages: Sequence[str], previous: str, max_tokens: int, task: str) -> Written:
        started = time.perf_counter()
        candidates = shortlist(candidate_sentences(messages, previous), self._max_embedded)
        vectors = await self._vectors([sentence.text for sentence in candidates])
        text = choose(candidates, vectors, max_tokens, self._count)
        usage = self._usage(started, "\n".join([previous, *messages]), text)
        return Written(text, prompt_hash(f"{VERSION} {task}"), usage)

    async def _vectors(self, texts: list[str]) -> Vectors:
        if self._embedder is None or len(texts) < 3:
            return tfidf(texts)
        try:
            return await self._embedder.embed_passages(texts)
        except ModelError:
            return tfidf(texts)  # a summary must not wait for an embedding server

    def _usage(self, started: float, read: str, written: str) -> Usage:
        return Usage(
            provider=PROVIDER,
            model=MODEL,
            tokens_in=self._count(read),
            tokens_out=self._count(written),
            latency_ms=(time.perf_counter() - started) * 1000,
        )
