"""Standard input and output of all commands."""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from turnlog.consumers.cli.options import given
from turnlog.events.errors import TurnlogError
from turnlog.events.local_time import is_undated
from turnlog.events.subjects import check_id

T = TypeVar("T")

SAY_AFTER_S = 3.0
# The largest sequence that NATS accepts.
LAST_SEQ = 2**63 - 1
# Control characters, except line breaks and tabs, and characters that reorder or break a line are shown as U+FFFD.
_REORDERING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_UNSHOWN = {code: "\ufffd" for code in (*range(32), *range(127, 160), *_REORDERING) if chr(code) not in "\n\t"}


# A line may break between any Chinese characters, but not before a closing mark.
WORD = re.compile(r"[^\s\u2e80-\uffef]+")
PARTS = re.compile(rf"\n|[^\S\n]+|[\u2e80-\uffef][，。、；：？！）」』》”’]*|{WORD.pattern}")


class BadOption(TurnlogError):
    """An option of a command has a value that cannot be used."""

    code = "bad-option"


def shown(text: str) -> str:
    return text.translate(_UNSHOWN)


def padded(text: str, width: int) -> str:
    """Returns the text, padded with spaces to this many terminal columns. A Chinese character takes two."""
    return text + " " * (width - cell_len(text))


def wrapped(text: str, width: int | None, indent: str = "") -> Iterator[str]:
    """Yields lines of at most `width` terminal columns; a longer word, such as a key, stays whole. With width None, the
    text's own lines are kept. indent: how far continuation lines are indented."""
    for whole in text.splitlines() or [""]:
        if width is None or cell_len(whole) <= width:
            yield whole
            continue
        line, continues = "", False
        for part in PARTS.findall(whole):
            if line.strip() and cell_len(line) + cell_len(part) > width:
                yield line.rstrip()
                line, continues = indent, True
            if not (continues and line == indent and part.isspace()):
                line += part
        if line.strip():
            yield line.rstrip()


def minute(at: datetime) -> str:
    """Returns the time to the minute, with its offset from UTC if it has one; "undated" if the time is unknown."""
    return "undated" if is_undated(at) else at.isoformat(" ", "minutes").removesuffix("+00:00")


class Words(Console):
    """Prints what people said without control characters, because an escape sequence could control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Breaks lines on a terminal only, and never within a word, such as a key; `:dog:` stays as it is."""
        words = (word for text in objects if isinstance(text, str | Text) for word in str(text).split())
        is_whole = not self.is_terminal or any(cell_len(word) > self.width for word in words)
        options = {"soft_wrap": is_whole, "emoji": False} | options
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Ends the command without an error when the reader of stdout has closed it, as `head` does."""
        raise BrokenPipeError


out = Words(highlight=False)
err = Words(stderr=True, highlight=False)


def check_given(kind: str, value: str | None) -> None:
    """Raises InvalidToken if a user or thread id is given and is not valid."""
    if value is not None:
        check_id(kind, value)


def json_object(option: str, text: str | None) -> Any:
    """Returns the JSON object of an option; None if it is null or was not given. Raises BadOption."""
    try:
        value = None if text is None else json.loads(text)
    except ValueError as error:
        raise BadOption(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict | None):
        raise BadOption(f"{option} is not a JSON object")
    return value


def pretty(document: Any) -> str:
    """Returns the document as JSON over several lines. It may contain dataclasses, models, times and ids."""
    return json.dumps(to_jsonable_python(document), ensure_ascii=False, indent=2)


def emit(document: Any) -> None:
    """Prints one JSON document to stdout."""
    sys.stdout.write(pretty(document) + "\n")


def check_known(kind: str, value: str | None, known: Iterable[str]) -> None:
    """Raises BadOption if a value is given and is not one of `known`."""
    if value is not None and value not in known:
        raise BadOption(f"there is no {kind} {value!r}; there are {', '.join(known)}")


def say(lines: Iterable[str | Text]) -> None:
    """Prints lines for people to stdout. On a terminal, a long line continues with a deeper indent."""
    for line in lines:
        if isinstance(line, Text) or not out.is_terminal:
            out.print(line, markup=False)
            continue
        deeper = " " * (len(line) - len(line.lstrip()) + 2)
        out.print("\n".join(wrapped(line, out.width, deeper)), markup=False)


@dataclass(frozen=True, slots=True)
class Result:
    """The output of a command: the document with --json, otherwise lines or one sentence. code: the exit code."""

    document: Any
    lines: str | Iterable[str | Text]
    code: int = 0


def rows(
    items: Sequence[T],
    show: Callable[[T], str | Iterable[str | Text]],
    none: str | None = None,
    document: Callable[[T], Any] = lambda item: item,
) -> Result:
    """Returns a result of several rows, each of one line or more. none: the sentence if there are no rows."""
    lines = [line for item in items for line in _lines(show(item))]
    return Result([document(item) for item in items], lines if items or none is None else none)


def columns(counts: Mapping[str, int]) -> Iterator[str]:
    for name, count in counts.items():
        yield f"  {count:>9,}  {name}"


def render(result: Result) -> int:
    """Prints the result of a command and returns its exit code."""
    if given().json:
        emit(result.document)
    else:
        say(_lines(result.lines))
    return result.code


def report(document: Any, said: str) -> None:
    """Prints a result immediately, from a command that continues."""
    render(Result(document, said))


def warn(text: str | None) -> None:
    """Prints a note on stderr, if there is one."""
    if text:
        err.print(text, markup=False)


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[Callable[[], None]]:
    """Prints on stderr what the command waits for if the block takes longer than SAY_AFTER_S. Yields a function that
    ends the wait earlier."""
    note = asyncio.get_running_loop().call_later(SAY_AFTER_S, warn, f"waiting for {what} …")
    try:
        yield note.cancel
    finally:
        note.cancel()


def _lines(shown: str | Iterable[str | Text]) -> Iterable[str | Text]:
    return [shown] if isinstance(shown, str) else shown


def emit_line(document: Any) -> None:
    """Prints one JSON document on one line, for streams."""
    sys.stdout.write(json.dumps(to_jsonable_python(document), ensure_ascii=False) + "\n")
    sys.stdout.flush()


async def stdin_lines() -> AsyncIterator[str]:
    """Yields the lines of standard input. On a terminal, a line is read only when it is needed.

    Waits on the event loop, so that projectors continue and Ctrl-C ends the wait at once. A thread that waits for a
    line would keep the process alive, and take the line that a person types next.
    """
    rest, stdin = b"", sys.stdin.fileno()
    while True:
        while b"\n" not in rest:
            await _until_readable(stdin)
            if not (data := os.read(stdin, 1 << 16)):
                if rest:
                    yield rest.decode(errors="replace")
                return
            rest += data
        line, _, rest = rest.partition(b"\n")
        yield line.decode(errors="replace")


async def _until_readable(stdin: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(stdin, readable.set)
    except PermissionError:  # an ordinary file can always be read
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(stdin)


def spent_text(usd: float, is_whole: bool) -> str:
    """Returns a cost as text for people. is_whole: whether the prices of all its tokens are known."""
    if is_whole:
        return f"${usd:.4f}"
    return f"${usd:.4f} + price unknown" if usd else "price unknown"
