"""A sequence that waits in a file: in memory are the places alone, whatever the items are."""

import os
import pickle
from array import array
from collections.abc import Iterable, Sequence
from typing import IO, Any, Generic, TypeVar, overload

T = TypeVar("T")


class OnFile(Sequence[T], Generic[T]):
    """Items of this process's own making, written one after another, read each by itself, also by several threads."""

    def __init__(self, file: IO[bytes]) -> None:
        """file: a binary one without buffer, empty, that nobody else writes."""
        self._file, self._ends = file, array("Q", [0])
        self._range = range(0)

    def extend(self, items: Iterable[T]) -> None:
        written = [pickle.dumps(item, pickle.HIGHEST_PROTOCOL) for item in items]
        self._file.write(b"".join(written))
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
            part = OnFile[T](self._file)
            part._ends, part._range = self._ends, self._range[at]
            return part
        place = self._range[at]
        start, end = self._ends[place], self._ends[place + 1]
        return pickle.loads(os.pread(self._file.fileno(), end - start, start))  # noqa: S301 - our own, unlinked file
