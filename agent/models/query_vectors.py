"""Caches the vectors of recent questions, because the recall of turns and that of memories need the same vector, and
people repeat questions."""

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from cachetools import LRUCache

from turnlog.agent import metrics
from turnlog.agent.models.protocol import Vectors
from turnlog.events.personal_data_caches import holds_words

KEPT = 512  # under 1 MB at 384 dimensions


class QueryVectors:
    """The vectors of one embedder by text. All callers share the vectors, which are read-only."""

    def __init__(self) -> None:
        self._kept: LRUCache[str, Vectors] = LRUCache(KEPT)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        holds_words(self)

    def forget_all(self) -> None:
        self._kept.clear()

    async def of(self, text: str, embed: Callable[[], Awaitable[Vectors]]) -> Vectors:
        """Returns the vector (dimensions,) of the text; calls `embed` if it is not cached, only once for concurrent
        calls."""
        async with self._asking.setdefault(text, asyncio.Lock()):
            vector = self._kept.get(text)
            metrics.cache_read("queries", int(vector is not None), int(vector is None))
            if vector is None:
                vector = await embed()
                vector.flags.writeable = False
                self._kept[text] = vector
            return vector
