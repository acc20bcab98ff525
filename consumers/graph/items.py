"""What an item of the store says, as text for a model."""

import json
from collections.abc import Mapping
from typing import Any

_FIELDS = ("text", "content", "data")


def item_text(value: Mapping[str, Any]) -> str:
    """Its `text`, `content` or `data` where that is a string, else all of it as JSON."""
    said = next((value[name] for name in _FIELDS if isinstance(value.get(name), str)), None)
    return said.strip() if said is not None else json.dumps(value, ensure_ascii=False, default=str)
