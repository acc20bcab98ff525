"""The embedder that a LangGraph IndexConfig names, as turnlog's own Embedder."""

from collections.abc import Awaitable, Sequence
from typing import Any, cast

import numpy as np
from langgraph.store.base import IndexConfig
from langgraph.store.base.embed import ensure_embeddings

from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.models.protocol import Meter, Vectors
from turnlog.events.errors import TurnlogError

MAX_DIMENSIONS = 16_000  # of a halfvec


class InvalidIndex(TurnlogError, ValueError):
    """The store's `index` cannot be used, or does not fit what its embedder gives."""

    code = "invalid-index"


class StoreIndexConfig(IndexConfig, total=False):
    """LangGraph's IndexConfig. model: the name that vectors are kept under, one for each embedding model.

    Without it the name is made of what `embed` is called; two functions of one name need it.
    """

    model: str


class GivenEmbedder:
    """An Embedder over LangChain's Embeddings, or over a function from texts to vectors.

    Vectors are scaled to unit length: similarity is the cosine, and half precision holds them. Raises
    ModelUnavailable for whatever the embedder raises, InvalidIndex for vectors of other dimensions than `dims`.
    """

    provider = "langgraph"

    def __init__(self, config: IndexConfig) -> None:
        self.dimensions = _dimensions(config)
        if config.get("distance_type", "cosine") != "cosine":
            raise InvalidIndex("index['distance_type'] is not supported: similarity is the cosine; leave it out")
        self.model = model_name(config)
        try:
            self._embeddings = ensure_embeddings(cast(Any, config.get("embed")))
        except (ValueError, ImportError) as error:
            raise InvalidIndex(f"index['embed'] cannot be used: {error}") from error

    async def embed_passages(self, texts: Sequence[str], meter: Meter | None = None) -> Vectors:
        return self._unit(await self._answer(self._embeddings.aembed_documents(list(texts))), len(texts))

    async def embed_query(self, text: str, meter: Meter | None = None) -> Vectors:
        found: Vectors = self._unit([await self._answer(self._embeddings.aembed_query(text))], 1)[0]
        return found

    async def close(self) -> None:
        """It belongs to the caller."""

    async def _answer(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except Exception as error:  # a foreign library raises what it likes
            raise ModelUnavailable(f"{self.model} failed: {type(error).__name__}: {error}") from error

    def _unit(self, found: Any, count: int) -> Vectors:
        try:
            vectors = np.asarray(found, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ModelUnavailable(f"{self.model} gave no vectors of one length: {error}") from error
        if vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
            raise ModelUnavailable(f"{self.model} gave an array of {vectors.shape} for {count} texts, or no numbers")
        if self.dimensions not in (0, vectors.shape[1]):
            raise InvalidIndex(
                f"{self.model} gave vectors of {vectors.shape[1]} dimensions; correct index['dims'], "
                f"which is {self.dimensions}"
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Vectors = vectors / np.maximum(lengths, 1e-12)
        return unit


def model_name(config: IndexConfig) -> str:
    """What the vectors are kept under; turnlog's own models have other names."""
    if given := config.get("model"):
        return f"langgraph:{given}"
    embed: Any = config.get("embed")
    of = next((v for v in (getattr(embed, a, None) for a in ("model", "model_name")) if isinstance(v, str)), "")
    return ":".join(filter(None, ("langgraph", _called(embed), of, str(config.get("dims") or ""))))


def _called(embed: Any) -> str:
    """A provider string as it is; else the function's, or the object's class's, full name."""
    if isinstance(embed, str):
        return embed
    kind = embed if hasattr(embed, "__qualname__") else type(embed)
    return f"{kind.__module__}.{kind.__qualname__}"


def _dimensions(config: IndexConfig) -> int:
    dims = config.get("dims") or 0
    if not isinstance(dims, int) or not 0 <= dims <= MAX_DIMENSIONS:
        raise InvalidIndex(f"index['dims'] is {dims!r}; it must be a number up to {MAX_DIMENSIONS:,}")
    return dims
