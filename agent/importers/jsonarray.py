"""A JSON array, or several in a row, item by item: memory holds one item, however long the file is."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

_CHUNK = 1 << 18
_BETWEEN = re.compile(r"[\s,]*")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONGEST_TOKEN = 12  # a cut `\\ud83d\\ude00` is reported at most this far before the end
_DECODER = json.JSONDecoder()


class Record(NamedTuple):
    """One JSON value. group: the number of the top-level array it stood in. error: why there is no value."""

    where: str
    group: int
    value: Any
    error: str | None = None


def array_items(text: TextIO) -> Iterator[Record]:
    """The items of `[…]` and of arrays that follow it (one list of messages a line).

    After malformed JSON the rest cannot be trusted: a Record with the error comes last.
    """
    window, group, number, inside = _Window(text), 0, 0, False
    while char := window.next_char():
        if char in "[]" and inside == (char == "]"):
            inside = not inside
            group += inside
            window.position += 1
            continue
        number += 1
        try:
            yield Record(f"item {number}", group, window.value())
        except ValueError as error:
            yield Record(f"item {number}", group, None, f"{error}; the rest of the file is left out")
            return
    if inside:
        yield Record(f"item {number + 1}", group, None, "the file ends in the middle of its list")


class _Window:
    """The piece of the text at hand; it doubles only while one item does not fit into it."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._buffer = ""
        self.position = 0

    def next_char(self) -> str:
        """The next character that is no space and no comma; "" at the end of the text."""
        while True:
            between = _BETWEEN.match(self._buffer, self.position)
            self.position = between.end() if between else self.position
            if self.position < len(self._buffer):
                return self._buffer[self.position]
            if not self._grow():
                return ""

    def value(self) -> Any:
        """The JSON value at the position, which moves behind it. Raises ValueError."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._buffer, self.position)
            except json.JSONDecodeError as error:
                if not (self._may_be_cut(error) and self._grow()):
                    raise ValueError(f"malformed JSON: {error.msg}") from error
            except RecursionError as error:
                raise ValueError("malformed JSON: nested too deeply") from error
            else:
                escaped = _ESCAPED_SURROGATE.search(self._buffer, self.position, end)
                self.position = end
                return scrub(value) if escaped else value

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        return error.msg.startswith("Unterminated") or error.pos >= len(self._buffer) - _LONGEST_TOKEN

    def _grow(self) -> bool:
        rest = self._buffer[self.position :]
        more = self._text.read(max(_CHUNK, len(rest)))
        self._buffer, self.position = rest + more, 0
        return bool(more)


def scrub(value: Any) -> Any:
    """The value with every lone surrogate in its texts replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    return value
