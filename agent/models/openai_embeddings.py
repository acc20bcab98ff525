"""Embeddings from any server that speaks the OpenAI API."""

import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import numpy as np

from turnlog.agent.models import observed
from turnlog.agent.models.calls import Caller
from turnlog.agent.models.errors import ModelRefused, ModelUnavailable
from turnlog.agent.models.openai_chat import new_client
from turnlog.agent.models.pricing import cost_of
from turnlog.agent.models.protocol import CountTokens, Meter, Usage, Vectors
from turnlog.agent.models.query_vectors import QueryVectors

MAX_TEXTS, MAX_CHARS = 256, 100_000  # a batch stays below every known server's request limits


class OpenAIEmbedder:
    """An Embedder. base_url and api_key: of the embedding server, or the chat server's if it has none of its own.

    dimensions: of the first vectors that the model gave, 0 before; others are refused, they would not fit the index.
    Vectors are scaled to unit length.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        count_tokens: CountTokens,
        timeout_s: float = 30.0,
        caller: Caller | None = None,
    ) -> None:
        self.model, self.dimensions = model, 0
        self.provider = urlsplit(base_url).hostname or "openai"
        self._client = new_client(base_url, api_key, timeout_s)
        self._caller = caller or Caller(base_url, secret=api_key, timeout_s=timeout_s, service="embeddings")
        # A person waits for the search, which finds something by words alone too: one more try, not three.
        self._query_caller = caller or Caller(
            base_url, secret=api_key, timeout_s=timeout_s, retries=1, breaker=self._caller.breaker
        )
        self._count = count_tokens
        self._asked = QueryVectors()

    async def close(self) -> None:
        await self._client.close()

    async def embed_query(self, text: str) -> Vectors:
        return await self._asked.of(text, lambda: self._embed_query(text))

    async def _embed_query(self, text: str) -> Vectors:
        vectors = await self._embed_all([text], None, self._query_caller)
        first: Vectors = vectors[0]
        return first

    async def embed_passages(self, texts: Sequence[str], meter: Meter | None = None) -> Vectors:
        return await self._embed_all(texts, meter, self._caller)

    embed_documents = embed_passages

    @observed.embedding
    async def _embed_all(self, texts: Sequence[str], meter: Meter | None, caller: Caller) -> Vectors:
        started, tokens, found = time.perf_counter(), 0, []
        for batch in batches(texts):
            vectors, used = await self._embed(batch, caller)
            found.append(vectors)
            tokens += used
        if meter is not None and found:
            cost = cost_of(self.model, tokens)
            meter(
                Usage(
                    provider=self.provider,
                    model=self.model,
                    calls=len(found),
                    tokens_in=tokens,
                    cost_usd=cost.usd,
                    price_known=cost.known,
                    latency_ms=(time.perf_counter() - started) * 1000,
                )
            )
        return np.concatenate(found) if found else np.empty((0, self.dimensions), np.float32)

    async def _embed(self, batch: list[str], caller: Caller) -> tuple[Vectors, int]:
        vectors, used = await caller.call(lambda: self._request(batch))
        if self.dimensions == 0:
            self.dimensions = vectors.shape[1]
        if vectors.shape[1] != self.dimensions:
            raise ModelRefused(
                f"{self.model} at {self._caller.url} gave vectors of {vectors.shape[1]} dimensions, earlier ones had "
                f"{self.dimensions}; another model needs another name in MEMORY_EMBEDDING_MODEL."
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, 1e-12), used

    async def _request(self, batch: list[str]) -> tuple[Vectors, int]:
        """The vectors in the order of the texts, and the tokens read. The client asks for base64 and takes floats as
        well."""
        reply = await self._client.embeddings.create(model=self.model, input=batch)
        items = list(getattr(reply, "data", None) or [])
        if len(items) != len(batch):
            raise ModelUnavailable(f"{self._caller.url} gave {len(items)} vectors for {len(batch)} texts.")
        if all(isinstance(item.index, int) for item in items):
            items.sort(key=lambda item: item.index)
        vectors = _vectors_of([item.embedding for item in items])
        if vectors is None:
            raise ModelUnavailable(
                f"{self._caller.url} gave vectors that are not lists of finite numbers, all of one length."
            )
        used = getattr(reply.usage, "prompt_tokens", None)
        return vectors, used if isinstance(used, int) else sum(map(self._count, batch))


def _vectors_of(embeddings: Sequence[object]) -> Vectors | None:
    """None where they are not lists of finite numbers, all of one length."""
    try:
        rows = np.asarray(embeddings)
    except ValueError:  # of several lengths
        return None
    if rows.dtype.kind not in "fiu" or rows.ndim != 2 or rows.shape[1] == 0:
        return None
    with np.errstate(over="ignore"):
        vectors = rows.astype(np.float32)
    return vectors if np.isfinite(vectors).all() else None


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts in order, cut into requests. An empty text is sent as a space, for servers refuse empty strings; halves of
    characters, which JSON in UTF-8 cannot hold, as question marks."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) == MAX_TEXTS or size + len(text) > MAX_CHARS):
            yield batch
            batch, size = [], 0
        batch.append(text.encode("utf-8", "replace").decode() or " ")
        size += len(text)
    if batch:
        yield batch
