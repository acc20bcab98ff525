"""Parses JSON text: one line, or a complete document as a stream of records in constant memory."""

import io
import json
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, TextIO

from pydantic_core import from_json

from turnlog.events.texts import storable

MAX_BYTES = 64 * 1024 * 1024
TOO_LONG = f"it is longer than {MAX_BYTES >> 20} MiB, the most that is read at once; split it"
CONVERT = "convert the file first: `iconv -f LATIN1 -t UTF-8 FILE`, with its own encoding in place of LATIN1"
_CHUNK = 1 << 18
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_BETWEEN = re.compile(r"[\s,]*")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONGEST_TOKEN = 12  # the error position of a cut `\\ud83d\\ude00` is at most this far before the end
_DECODER = json.JSONDecoder()


def lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """Yields the lines of the stream; None for a line over MAX_BYTES, which is never completely in memory."""
    while line := stream.readline(MAX_BYTES + 1):
        if len(line) <= MAX_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(_CHUNK)
        yield None


class Record(NamedTuple):
    """One JSON value. group: the number of its top-level array. error: the reason if there is no value."""

    where: str
    group: int
    value: Any
    error: str | None = None


def array_items(text: TextIO) -> Iterator[Record]:
    """Yields the items of an array `[…]`, and of arrays that follow it (a file may have one list of messages per line).
    text: contains surrogates for bytes that are not UTF-8.

    Malformed JSON ends the stream; the last Record then has the error.
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
        except _NotUtf8 as error:
            yield Record(f"item {number}", group, None, str(error))
        except ValueError as error:
            yield Record(f"item {number}", group, None, f"{error}; the rest of the file is left out")
            return
    if inside:
        yield Record(f"item {number + 1}", group, None, "the file ends in the middle of its list")


class _NotUtf8(ValueError):
    """The item was read to its end, but its text is not valid UTF-8."""


class _Window:
    """A window of the text, which grows only while an item does not fit."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._buffer = ""
        self.position = 0

    def next_char(self) -> str:
        """Returns the next character that is neither space nor comma; "" at the end of the text."""
        while True:
            between = _BETWEEN.match(self._buffer, self.position)
            self.position = between.end() if between else self.position
            if self.position < len(self._buffer):
                return self._buffer[self.position]
            if not self._grow():
                return ""

    def value(self) -> Any:
        """Reads the JSON value at the position and moves past it. Raises ValueError."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._buffer, self.position)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or error.pos >= len(self._buffer) - _LONGEST_TOKEN
                if not (is_cut and self._grow()):
                    raise ValueError(f"malformed JSON: {_problem(error)}") from error
            except RecursionError as error:
                raise ValueError("malformed JSON: nested too deeply") from error
            else:
                escaped = _ESCAPED_SURROGATE.search(self._buffer, self.position, end)
                garbled = _NOT_UTF8.search(self._buffer, self.position, end)
                self.position = end
                if garbled:
                    raise _NotUtf8(f"it is not UTF-8; {CONVERT}")
                return storable(value) if escaped else value

    def _grow(self) -> bool:
        """Returns False at the end of the text. Raises ValueError for an item of more than MAX_BYTES characters."""
        rest = self._buffer[self.position :]
        if len(rest) > MAX_BYTES:
            raise ValueError(TOO_LONG)
        more = self._text.read(max(_CHUNK, len(rest)))
        self._buffer, self.position = rest + more, 0
        return bool(more)


def parse(line: bytes) -> Any:
    """Returns the JSON value of a line. Raises ValueError with a plain reason.

    The fast parser refuses lone surrogates; the slow parser reads every line that the fast one refuses. `storable`
    describes how lone surrogates are stored.
    """
    try:
        return from_json(line)
    except ValueError:
        return _parse_slowly(line)


def _parse_slowly(line: bytes) -> Any:
    try:
        return storable(json.loads(line.decode("utf-8-sig").rstrip()))
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8; {CONVERT}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON: {_problem(error)} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("malformed JSON: nested too deeply") from error


def _problem(error: json.JSONDecodeError) -> str:
    """Returns the error message without " at" or " starting" at its end, after which a position would follow."""
    return error.msg.removesuffix(" at").removesuffix(" starting").rstrip(": ")


def records(stream: IO[bytes]) -> Iterator[Record]:
    """Yields the records of a JSON document: the items of its arrays, the lines of JSONL, or the single object."""
    first = stream.readline(1024)
    while first.isspace():
        first = stream.readline(1024)
    stream.seek(0)
    if first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape")
        try:
            yield from array_items(text)
        finally:
            text.detach()  # the caller closes the stream it opened
    else:
        yield from _lines_or_document(stream)


def _lines_or_document(stream: IO[bytes]) -> Iterator[Record]:
    stream_lines = lines(stream)
    first = next(stream_lines, b"")
    if first is not None and _is_cut(first):
        text = first + stream.read(MAX_BYTES + 1 - len(first))
        yield _record("document", text if len(text) <= MAX_BYTES else None)
        return
    yield _record("line 1", first)
    for number, line in enumerate(stream_lines, 2):
        if line is None or not line.isspace():
            yield _record(f"line {number}", line)


def _is_cut(line: bytes) -> bool:
    """Returns whether the line begins an object that continues on the next lines."""
    text = line.decode("utf-8-sig", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except RecursionError:
        pass
    return False


def _record(where: str, raw: bytes | None) -> Record:
    """Returns a record of one JSON text. raw: None if it is too long."""
    if raw is None:
        return Record(where, 0, None, TOO_LONG)
    try:
        return Record(where, 0, parse(raw))
    except ValueError as error:
        return Record(where, 0, None, str(error))
