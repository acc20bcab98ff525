"""JSON text to values: one line, or a whole document as a stream of records with flat memory."""

import io
import json
from collections.abc import Iterator
from typing import IO, Any

from pydantic_core import from_json

from turnlog.agent.importers.jsonarray import Record, array_items, scrub


def parse(line: bytes) -> Any:
    """One JSON value; lone surrogates become U+FFFD, NUL stays. Raises ValueError with a plain reason.

    The fast parser refuses lone surrogates, so only what it refuses goes the slow way.
    """
    try:
        return from_json(line)
    except ValueError:
        return _parse_slowly(line)


def _parse_slowly(line: bytes) -> Any:
    try:
        return scrub(json.loads(line.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("malformed JSON: nested too deeply") from error


def records(stream: IO[bytes]) -> Iterator[Record]:
    """The records of a JSON document: items of its array(s), lines of JSONL, or the one object.

    Invalid UTF-8 in an array or object is read as U+FFFD: its end could not be found otherwise.
    """
    first = stream.readline(1024)
    while first.isspace():
        first = stream.readline(1024)
    stream.seek(0)
    if first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        text = io.TextIOWrapper(stream, "utf-8-sig", "replace")
        try:
            yield from array_items(text)
        finally:
            text.detach()  # the stream belongs to whoever opened it
    else:
        yield from _lines_or_document(stream)


def _lines_or_document(stream: IO[bytes]) -> Iterator[Record]:
    first = stream.readline()
    if _is_cut(first):
        text = (first + stream.read()).decode("utf-8-sig", "replace")
        yield _record("document", text.encode())
        return
    yield _record("line 1", first)
    for number, line in enumerate(stream, 2):
        if not line.isspace():
            yield _record(f"line {number}", line)


def _is_cut(line: bytes) -> bool:
    """Whether the line is the start of an object that goes on in the next lines."""
    text = line.decode("utf-8-sig", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except RecursionError:
        pass
    return False


def _record(where: str, raw: bytes) -> Record:
    try:
        return Record(where, 0, parse(raw))
    except ValueError as error:
        return Record(where, 0, None, str(error))
