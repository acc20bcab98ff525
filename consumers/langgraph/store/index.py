"""Reads LangGraph's IndexConfig, which says which texts of an item are embedded, and by which embedder."""

import hashlib
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from langgraph.store.base import IndexConfig, get_text_at_path, tokenize_path
from langgraph.store.base.embed import ensure_embeddings

from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.models.protocol import Meter, Vectors
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_id

MAX_DIMENSIONS = 16_000  # maximum of a halfvec
WHOLE = "$"


class InvalidIndex(TurnlogError, ValueError):
    """The store's `index` cannot be used, or does not fit its embedder's vectors."""

    code = "invalid-index"


class StoreIndexConfig(IndexConfig, total=False):
    """LangGraph's IndexConfig with a field `model`: the name under which vectors are stored, one per embedding model.

    Without it, the name is derived from the name of `embed`. It is required if two functions have the same name.
    """

    model: str


class GivenEmbedder:
    """An Embedder made of LangChain's Embeddings, or of a function from texts to vectors.

    Vectors are scaled to unit length, because similarity is the cosine and so that half precision can represent them.
    Raises ModelUnavailable for any error of the embedder, InvalidIndex for vectors whose number of dimensions is not
    `dims`.
    """

    provider = "langgraph"

    def __init__(self, config: IndexConfig) -> None:
        dims = config.get("dims") or 0
        if not isinstance(dims, int) or not 0 <= dims <= MAX_DIMENSIONS:
            raise InvalidIndex(f"index['dims'] is {dims!r}; it must be a number up to {MAX_DIMENSIONS:,}")
        self.dimensions = dims
        if config.get("distance_type", "cosine") != "cosine":
            raise InvalidIndex("index['distance_type'] is not supported: similarity is the cosine; leave it out")
        self.model = model_name(config)
        try:
            self._embeddings = ensure_embeddings(cast(Any, config.get("embed")))
        except (ValueError, ImportError) as error:
            raise InvalidIndex(f"index['embed'] cannot be used: {error}") from error

    async def embed_passages(self, texts: Sequence[str], meter: Meter | None = None) -> Vectors:
        return self._unit(await self._answer(self._embeddings.aembed_documents(list(texts))), len(texts))

    async def embed_documents(
        self, texts: Sequence[str], meter: Meter | None = None, asker: str | None = None
    ) -> Vectors:
        return await self.embed_passages(texts, meter)

    async def embed_query(self, text: str, asker: str | None = None) -> Vectors:
        vector: Vectors = self._unit([await self._answer(self._embeddings.aembed_query(text))], 1)[0]
        return vector

    async def ready(self) -> None:
        """Does nothing, because the model is known."""

    async def close(self) -> None:
        """Does nothing, because the embeddings belong to the caller."""

    async def _answer(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except Exception as error:  # a foreign library may raise anything
            raise ModelUnavailable(f"{self.model} failed: {type(error).__name__}: {error}") from error

    def _unit(self, answer: Any, count: int) -> Vectors:
        try:
            vectors = np.asarray(answer, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ModelUnavailable(f"{self.model} did not give vectors of one length: {error}") from error
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
    """Returns the name under which the vectors are stored; never the name of one of turnlog's own models."""
    if name := config.get("model"):
        return f"langgraph:{name}"
    embed: Any = config.get("embed")
    of = next((v for v in (getattr(embed, a, None) for a in ("model", "model_name")) if isinstance(v, str)), "")
    return ":".join(filter(None, ("langgraph", _called(embed), of, str(config.get("dims") or ""))))


def _called(embed: Any) -> str:
    """Returns a provider string unchanged; otherwise the full name of the function or of the object's class."""
    if isinstance(embed, str):
        return embed
    kind = embed if hasattr(embed, "__qualname__") else type(embed)
    return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, slots=True)
class TextToEmbed:
    """A text to embed. field: the path it comes from, with its number if the path leads to several texts."""

    field: str
    text: str

    @property
    def text_hash(self) -> str:
        """Returns the SHA-256 hash in hex, the text's key in the event and the cache."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def fields_of(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the paths of an IndexConfig; by default, the whole value. Raises InvalidIndex."""
    fields = (config or {}).get("fields") or [WHOLE]
    return checked_paths([fields] if isinstance(fields, str) else fields)


def checked_paths(paths: Any) -> tuple[str, ...]:
    """Checks the paths. Raises InvalidIndex, InvalidToken."""
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise InvalidIndex(f"the fields to index are {str(paths)[:80]!r}; give a list of paths, or False for none")
    return tuple(check_id("index field", path) for path in paths)


def texts_to_embed(value: Mapping[str, Any], paths: Iterable[str]) -> list[TextToEmbed]:
    """Returns the texts at the paths, one per field, without missing paths and blank texts."""
    by_field: dict[str, str] = {}
    for path in paths:
        texts = get_text_at_path(value, path if path == WHOLE else tokenize_path(path))
        named = {path: texts[0]} if len(texts) == 1 else {f"{path}.{at}": text for at, text in enumerate(texts)}
        by_field |= {field: text for field, text in named.items() if text.strip()}
    return [TextToEmbed(field, text) for field, text in by_field.items()]
