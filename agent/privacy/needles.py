"""Looks for a person's strings in bytes, in every form that a store may write them in (M9). Pure.

The forms: as it is, escaped as JSON once and twice, and base64 at each of its three alignments. Case does not count.
Bytes are looked through 8 at a time by a hash, so that thousands of forms cost no more than one.
"""

import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 8
BITS = 20
CHUNK_BYTES = 4 * 1024 * 1024
_FACTORS = np.array([0x9E3779B1, 0x85EBCA77], dtype=np.uint32)


class Needles:
    """strings: of at least KEY_BYTES bytes of UTF-8 each; shorter ones cannot be told from chance and are left out."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(dict.fromkeys(one for one in strings if len(one.encode()) >= KEY_BYTES))
        self._by_key: defaultdict[bytes, list[tuple[bytes, int, int]]] = defaultdict(list)
        self.longest = KEY_BYTES
        for number, text in enumerate(self.strings):
            for form in forms(text):
                at = (len(form) - KEY_BYTES) // 2  # the middle: beginnings are alike more often
                self._by_key[form[at : at + KEY_BYTES]].append((form, at, number))
                self.longest = max(self.longest, len(form))
        self._table = np.zeros(1 << BITS, dtype=np.bool_)
        for key in self._by_key:
            self._table[_hashes(np.frombuffer(key, dtype=np.uint8))] = True

    def within(self, data: bytes) -> dict[int, int]:
        """Number of a string → how often any form of it occurs."""
        found: defaultdict[int, int] = defaultdict(int)
        if len(data) < KEY_BYTES or not self.strings:
            return {}
        low = data.lower()
        for at in np.flatnonzero(self._table[_hashes(np.frombuffer(low, dtype=np.uint8))]).tolist():
            for form, offset, number in self._by_key.get(low[at : at + KEY_BYTES], ()):
                if at >= offset and low.startswith(form, at - offset):
                    found[number] += 1
        return dict(found)


class Searched:
    """What a stream of bytes holds; a string that two parts divide is found too. found: as Needles.within."""

    def __init__(self, needles: Needles) -> None:
        self._needles, self._rest = needles, b""
        self._waiting: list[bytes] = []
        self._size = 0
        self.found: defaultdict[int, int] = defaultdict(int)

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Looks through what waits. The end is looked through again with what follows it, and counted once."""
        data = self._rest + b"".join(self._waiting)
        self._count(data, 1)
        self._count(self._rest, -1)
        keep = self._needles.longest - 1
        self._rest = data[-keep:] if keep else b""
        self._waiting, self._size = [], 0

    def _count(self, data: bytes, sign: int) -> None:
        for number, times in self._needles.within(data).items():
            self.found[number] += sign * times

    @property
    def hits(self) -> int:
        return sum(self.found.values())


def forms(text: str) -> Iterator[bytes]:
    """Each at least KEY_BYTES long, in lower case, once."""
    plain = {one.encode(errors="replace") for one in (text, text.casefold(), text.upper())}
    escaped = {json.dumps(text)[1:-1], json.dumps(text.casefold())[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    twice = {json.dumps(one)[1:-1] for one in escaped}
    every = {
        *plain,
        *(one.encode(errors="replace") for one in escaped | twice),
        *_base64(text.encode(errors="replace")),
    }
    yield from sorted({form.lower() for form in every if len(form) >= KEY_BYTES})


def fitting(strings: Iterable[str]) -> list[str]:
    """Those that are long enough to be looked for."""
    return [one for one in strings if len(one.encode(errors="replace")) >= KEY_BYTES]


def _base64(data: bytes) -> Iterator[bytes]:
    """The characters that do not depend on what stands before and behind."""
    for before in range(3):
        coded = b64encode(b"\0" * before + data)
        first = (before * 8 + 5) // 6
        last = (before + len(data)) * 8 // 6
        yield coded[first:last]


def _hashes(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Of each KEY_BYTES bytes in a row."""
    words = data[:-3].astype(np.uint32)
    for at in (1, 2, 3):
        words |= data[at : len(data) - 3 + at].astype(np.uint32) << np.uint32(8 * at)
    mixed = words[:-4] * _FACTORS[0] ^ words[4:] * _FACTORS[1]
    found: NDArray[np.uint32] = (mixed ^ mixed >> np.uint32(15)) * _FACTORS[0] >> np.uint32(32 - BITS)
    return found
