"""A sequence that waits in a file: in memory are the places alone, whatever the items are."""

import os
from array import array
from collections.abc import Iterable, Sequence
from typing import IO, Any, Generic, TypeVar, overload

from pydantic import TypeAdapter

T = TypeVar("T")


class OnFile(Sequence[T], Generic[T]):
    """Items written one after another as JSON, read each by itself, also by several threads."""

    def __init__(self, file: IO[bytes], kind: TypeAdapter[T]) -> None:
        """file: a binary one, empty, that nobody else writes. kind: of the items, whole in JSON."""
        self._file, self._kind, self._ends = file, kind, array("Q", [0])
        self._range = range(0)

    def extend(self, items: Iterable[T]) -> None:
        written = [self._kind.dump_json(item) for item in items]
        self._file.write(b"".join(written))
        self._file.flush()
        for one in written:
            self._ends.append(self._ends[-1] + len(one))
        self._range = range(len(self._ends) - 1)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> "OnFile[T]": ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            part = OnFile(self._file, self._kind)
            part._ends, part._range = self._ends, self._range[at]
            return part
        place = self._range[at]
        start, end = self._ends[place], self._ends[place + 1]
        return self._kind.validate_json(os.pread(self._file.fileno(), end - start, start))
