"""Makes texts that every store can hold: replaces lone surrogates and NUL, which JSON and Python allow, by U+FFFD."""

import re
from contextlib import suppress
from typing import Any

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def storable(value: Any) -> Any:
    """Returns the value with each lone surrogate and each NUL in its texts replaced.

    A high and a low surrogate in a row become the character that they encode.
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
    """Returns the JSON with lone surrogates replaced, both escapes and encoded bytes; other errors in it stay.

    NUL stays too, because ids with a NUL are refused and ids cannot be told from texts here.
    """
    if b"\xed" in text:  # the first byte of encoded surrogates and of Korean letters
        with suppress(UnicodeDecodeError):
            text = _whole(text.decode("utf-8", "surrogatepass")).encode()
    if b"\\ud" in text or b"\\uD" in text:
        text = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], text)
    return text
