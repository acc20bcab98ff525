"""Formats rows as a table with heads, for terminals of any width and for pipes."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.text import Text

from turnlog.consumers.cli.console import Result, minute, out, padded, wrapped

T = TypeVar("T")

_GAP, _INDENT, _NARROWEST = "  ", "    ", 32
_NUMBER = re.compile(r"-|[<$-]*[\d,]+(?:\.\d+)?(?: m?s)?")


def short_ids(ids: Iterable[object], least: int = 8) -> dict[Any, str]:
    """Returns the beginning of each id: `least` characters, or as many as are needed to tell them apart."""
    whole = {id_: str(id_) for id_ in ids}
    length = next(n for n in range(least, 1_000) if len({text[:n] for text in whole.values()}) == len(whole))
    return {id_: text[:length] for id_, text in whole.items()}


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of a table; numbers are aligned to the right. A column without any value is left out, unless `whole`.
    The last column may have several lines; on a terminal it wraps under its head, or under the row if there is too
    little room. Other columns that do not fit follow under the row, with their heads."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    whole: bool = False

    def __iter__(self) -> Iterator[str | Text]:
        fixed = [at for at, _ in enumerate(self.heads[:-1]) if self.whole or any(row[at] for row in self.rows)]
        width = out.width if out.is_terminal else None
        sizes = {at: max(cell_len(self.heads[at]), *(cell_len(row[at]) for row in self.rows)) for at in fixed}
        beside = list(fixed)
        while width is not None and len(beside) > 1 and self._size(beside, sizes) > width:
            beside.pop()
        below = [at for at in fixed if at not in beside]
        start = self._size(beside, sizes) + len(_GAP) * bool(beside)
        longest = max(cell_len(line) for row in self.rows for line in row[-1].splitlines() or [""])
        under = bool(below) or (width is not None and width - start < min(longest, _NARROWEST))
        last = len(self.heads) - 1
        numbers = {at for at in (*fixed, last) if all(_NUMBER.fullmatch(row[at]) for row in self.rows if row[at])}
        longest = max(longest, cell_len(self.heads[last])) if longest or self.whole else 0

        def line(row: Sequence[str], end: str) -> str:
            cells = [row[at].rjust(sizes[at]) if at in numbers else padded(row[at], sizes[at]) for at in beside]
            return _GAP.join([*cells, end.rjust(longest) if last in numbers else end]).rstrip()

        headed = longest and not below and (width is None or start + cell_len(self.heads[last]) <= width)
        yield Text(line(self.heads, self.heads[last] if headed else ""), "bold")
        indent = _INDENT if under else " " * start
        for row in self.rows:
            named = [*below, last] if under and (self.whole or last in numbers) else below
            more = ", ".join(f"{self.heads[at].lower()} {row[at]}" for at in named if row[at])
            text = "\n".join(filter(None, (more, "" if last in named else row[last])))
            lines = list(wrapped(text, None if width is None else width - len(indent)))
            yield line(row, "" if under else lines[0])
            yield from (f"{indent}{part}".rstrip() for part in (lines if under else lines[1:]) if part)

    def _size(self, columns: Sequence[int], sizes: Mapping[int, int]) -> int:
        return sum(sizes[at] for at in columns) + len(_GAP) * (len(columns) - 1)


def table(
    rows: Sequence[T],
    columns: Mapping[str, Callable[[T], Any]],
    none: str | None = None,
    document: Callable[[T], Any] = lambda row: row,
) -> Result:
    """Returns rows as a table. columns: for each head, the function that gives a row's value. none: the sentence if
    there are no rows.
    """
    cells = [[_cell(of(row)) for of in columns.values()] for row in rows]
    lines = Table(list(columns), cells) if rows else none or ()
    return Result([document(row) for row in rows], lines)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return minute(value)
    return f"{value:,}" if isinstance(value, int) else str(value or "")
