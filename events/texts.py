"""Texts that every store can hold: U+FFFD stands for half a surrogate pair and for NUL, which JSON and Python allow."""

import re
from contextlib import suppress
from typing import Any

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def storable(value: Any) -> Any:
    """Returns the value with each half surrogate pair and each NUL in its texts replaced.

    Two halves that follow each other become the character that they stand for.
    """
    match value:
        case str():
            return _whole(value).replace("\0", "\ufffd")
        case dict():
            return {storable(key): storable(item) for key, item in value.items()}
        case list() | tuple():
            return [storable(item) for item in value]
    return value


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def valid_json(text: bytes) -> bytes:
    """Returns the same JSON with half surrogate pairs replaced, written as escapes or as bytes; other mistakes stay in
    it.

    NUL stays as well: an id with one is refused, and a reader cannot tell ids from texts yet.
    """
    if b"\xed" in text:  # first byte of encoded surrogates, and of Korean letters
        with suppress(UnicodeDecodeError):
            text = _whole(text.decode("utf-8", "surrogatepass")).encode()
    if b"\\ud" in text or b"\\uD" in text:
        text = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], text)
    return text
