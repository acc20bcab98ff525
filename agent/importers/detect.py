"""Which format a file is in, judged by its first 256 KiB."""

import re
from pathlib import Path
from typing import Any, Literal

from turnlog.agent.importers.files import head, is_zip
from turnlog.agent.importers.jsontext import parse

Format = Literal["openai", "chatgpt", "locomo", "jsonl", "memorybank"]
_HEAD = 1 << 18
_SIGNS: tuple[tuple[Format, tuple[str, ...]], ...] = (
    ("chatgpt", ("mapping",)),
    ("locomo", ("dia_id",)),
    ("locomo", ("qa", "evidence")),
    ("memorybank", ("history", "query", "response")),
    ("openai", ("role", "content")),
    ("openai", ("messages",)),
)


def detect_format(path: Path) -> Format | None:
    """The format, or None when nothing in the file's head tells. Raises ImportFailed (unreadable)."""
    if is_zip(path):
        return "chatgpt"
    start = head(path, _HEAD)
    lines = start.splitlines()[: -1 if len(start) == _HEAD else None]
    return _by_lines(lines[:20]) or _by_signs(start.decode("utf-8", "replace"))


def _by_lines(lines: list[bytes]) -> Format | None:
    """JSONL: the first line that is an object on its own and looks like something."""
    for line in lines:
        try:
            value = parse(line)
        except ValueError:
            continue
        found = _by_keys(value) if isinstance(value, dict) else None
        if found:
            return found
    return None


def _by_keys(value: dict[str, Any]) -> Format | None:
    if "mapping" in value:
        return "chatgpt"
    if "conversation" in value:
        return "locomo"
    if "messages" in value or ("role" in value and not value.keys() & {"thread", "text", "user"}):
        return "openai"
    return "jsonl" if value.keys() & {"thread", "text", "content"} else None


def _by_signs(text: str) -> Format | None:
    """A document: keys that only this format has. A key quoted inside a text is escaped, so not counted."""
    for found, keys in _SIGNS:
        if all(re.search(rf'(?<!\\)"{key}"\s*:', text) for key in keys):
            return found
    return None
