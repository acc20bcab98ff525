"""Which texts of an item are embedded: LangGraph's field paths, as values."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import get_text_at_path, tokenize_path

from turnlog.consumers.langgraph.store_embedder import InvalidIndex
from turnlog.events.subjects import check_id

WHOLE = "$"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text to embed. field: the path it comes from, with its number where the path leads to several."""

    field: str
    text: str

    @property
    def text_hash(self) -> str:
        """SHA-256 in hex, as the event and the cache name it."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def fields_of(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The paths of an IndexConfig: the whole value where it names none. Raises InvalidIndex."""
    fields = (config or {}).get("fields") or [WHOLE]
    return checked_paths([fields] if isinstance(fields, str) else fields)


def checked_paths(paths: Any) -> tuple[str, ...]:
    """Raises InvalidIndex, InvalidToken."""
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise InvalidIndex(f"the fields to index are {str(paths)[:80]!r}; give a list of paths, or False for none")
    return tuple(check_id("index field", path) for path in paths)


def wanted_texts(value: Mapping[str, Any], paths: Iterable[str]) -> list[Wanted]:
    """Texts at the paths, one a field; a path that leads nowhere and a blank text are left out."""
    found: dict[str, str] = {}
    for path in paths:
        texts = get_text_at_path(value, path if path == WHOLE else tokenize_path(path))
        named = {path: texts[0]} if len(texts) == 1 else {f"{path}.{at}": text for at, text in enumerate(texts)}
        found |= {field: text for field, text in named.items() if text.strip()}
    return [Wanted(field, text) for field, text in found.items()]
