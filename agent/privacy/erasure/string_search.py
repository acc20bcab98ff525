"""Searches bytes for a person's strings in every form in which a store may write them. Pure.

The forms are plain text, text escaped as JSON once and twice, and base64 at each of its three alignments. Case is
ignored. A rolling hash of 8 bytes is compared, so that a search for thousands of forms takes no longer than for one.
"""

import json
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnlog.events.contracts import CheckpointSaved, Event, EventData, Memory, StoreItemPut, TurnRecorded
from turnlog.events.sealing import fields_of
from turnlog.projectors.models.chunks.chunking import index_texts

KEY_BYTES = 8
BITS = 20
CHUNK_BYTES = 4 * 1024 * 1024
_FACTORS = np.array([0x9E3779B1, 0x85EBCA77], dtype=np.uint32)


class SearchStrings:
    """Strings to search for. strings: those with at least KEY_BYTES bytes of UTF-8; shorter strings are left out,
    because they would match by chance."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(dict.fromkeys(string for string in strings if len(string.encode()) >= KEY_BYTES))
        self._by_key: defaultdict[bytes, list[tuple[bytes, int, int]]] = defaultdict(list)
        self.longest = KEY_BYTES
        for number, text in enumerate(self.strings):
            for form in forms(text):
                at = (len(form) - KEY_BYTES) // 2  # in the middle, because beginnings are more often equal
                self._by_key[form[at : at + KEY_BYTES]].append((form, at, number))
                self.longest = max(self.longest, len(form))
        self._table = np.zeros(1 << BITS, dtype=np.bool_)
        for key in self._by_key:
            self._table[_hashes(np.frombuffer(key, dtype=np.uint8))] = True

    def within(self, data: bytes) -> dict[int, int]:
        """Returns index of a string → number of occurrences, in any form, for each string that occurs."""
        counts: defaultdict[int, int] = defaultdict(int)
        if len(data) < KEY_BYTES or not self.strings:
            return {}
        low = data.lower()
        for at in np.flatnonzero(self._table[_hashes(np.frombuffer(low, dtype=np.uint8))]).tolist():
            for form, offset, number in self._by_key.get(low[at : at + KEY_BYTES], ()):
                if at >= offset and low.startswith(form, at - offset):
                    counts[number] += 1
        return dict(counts)


class Searched:
    """Searches a stream of bytes; also finds a string that is split between two parts. found: the hits, as returned by
    SearchStrings.within."""

    def __init__(self, search_strings: SearchStrings) -> None:
        self._search_strings, self._rest = search_strings, b""
        self._waiting: list[bytes] = []
        self._size = 0
        self.found: defaultdict[int, int] = defaultdict(int)

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Searches the buffer. The end of the buffer is searched again with the next part, but its hits are counted
        once."""
        data = self._rest + b"".join(self._waiting)
        self._count(data, 1)
        self._count(self._rest, -1)
        keep = self._search_strings.longest - 1
        self._rest = data[-keep:] if keep else b""
        self._waiting, self._size = [], 0

    def _count(self, data: bytes, sign: int) -> None:
        for number, times in self._search_strings.within(data).items():
            self.found[number] += sign * times

    @property
    def hits(self) -> int:
        return sum(self.found.values())

    @property
    def masked(self) -> list[str]:
        """Returns the strings that occur, masked so that only the person recognises them."""
        return [masked(self._search_strings.strings[number]) for number, times in self.found.items() if times]


def forms(text: str) -> Iterator[bytes]:
    """Yields the different forms in which a text may be stored, in lower case; forms shorter than KEY_BYTES are left
    out."""
    plain = {cased.encode(errors="replace") for cased in (text, text.casefold(), text.upper())}
    escaped = {json.dumps(text)[1:-1], json.dumps(text.casefold())[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    twice = {json.dumps(form)[1:-1] for form in escaped}
    every = {
        *plain,
        *(form.encode(errors="replace") for form in escaped | twice),
        *_base64(text.encode(errors="replace")),
    }
    yield from sorted({form.lower() for form in every if len(form) >= KEY_BYTES})


def fitting(strings: Iterable[str]) -> list[str]:
    """Returns the strings that are long enough to search for."""
    return [string for string in strings if len(string.encode(errors="replace")) >= KEY_BYTES]


def masked(text: str) -> str:
    """Returns the first one or two characters and the length of a text; of a longer text also the last character."""
    shown = f"{text[:2]}…{text[-1]}" if len(text) >= KEY_BYTES else f"{text[:1]}…"
    return f"{shown} ({len(text)} characters)"


def _base64(data: bytes) -> Iterator[bytes]:
    """Yields, for each alignment, the base64 characters that do not depend on neighbouring bytes."""
    for before in range(3):
        coded = b64encode(b"\0" * before + data)
        first = (before * 8 + 5) // 6
        last = (before + len(data)) * 8 // 6
        yield coded[first:last]


def _hashes(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Returns the hash of every sequence of KEY_BYTES bytes."""
    words = data[:-3].astype(np.uint32)
    for at in (1, 2, 3):
        words |= data[at : len(data) - 3 + at].astype(np.uint32) << np.uint32(8 * at)
    mixed = words[:-4] * _FACTORS[0] ^ words[4:] * _FACTORS[1]
    hashes: NDArray[np.uint32] = (mixed ^ mixed >> np.uint32(15)) * _FACTORS[0] >> np.uint32(32 - BITS)
    return hashes


MOST_CANDIDATES = 20_000
MOST_CHARS, PART_CHARS = 60, 32
# Texts are split at control characters, quotes and backslashes, because stores write these in different ways.
_PARTS = re.compile(r"[^\"\\\x00-\x1f\x7f\u2028\u2029]+")
_SENTENCES = re.compile(r"(?<=[.!?;。！？；，])")
# Numbers and codes count only as complete words, because within longer words they are parts of ids or hashes. A code
# contains a digit.
_IDENTIFIERS = re.compile(
    r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{3,64}|(?<![A-Za-z0-9_])(?<![0-9]\.)"
    r"(?:\+?[0-9][0-9 -]{6,30}[0-9Xx]|[A-Z]{2}(?=[A-Z]*[0-9])[A-Z0-9]{6,20})(?![A-Za-z0-9_])"
)
_ID_OF_OURS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # an event's id, which is stored in clear
_DATE = re.compile(r"(?:19|20)[0-9]{2}-?[01][0-9]-?[0-3][0-9]")


def words_of(data: EventData) -> Iterator[str]:
    """Yields search candidates from an event's personal fields: identifiers and parts of sentences."""
    said = data.model_dump(mode="json", exclude_none=True, include=dict(fields_of(type(data)).include))
    if isinstance(data, CheckpointSaved):  # the other fields contain version numbers, which look like identifiers
        said["checkpoint"] = data.checkpoint.get("channel_values")
    if isinstance(data, TurnRecorded):  # ids of tool calls are not words, and are stored in clear with the results
        blocks = said["content"] if isinstance(data.content, tuple) else []
        for part in (*said["tool_calls"], *blocks):
            part.pop("id", None)
            part.pop("tool_use_id", None)
    for name, value in said.items():
        if name not in data.UNSEARCHED:
            for text in _strings(value):
                yield from candidates(text)


def text_hashes(event: Event) -> Iterator[bytes]:
    """Yields the SHA-256, as in the embedding cache, of every text of the event that gets a vector.

    They are computed from the event, because its rows may no longer exist: a conversation may be archived, a memory
    forgotten.
    """
    data = event.data
    yield from (sha256(text.encode()).digest() for text in index_texts(event))
    if isinstance(memory := getattr(data, "memory", None), Memory):
        yield sha256(memory.content.encode()).digest()
    if isinstance(data, StoreItemPut):
        yield from (bytes.fromhex(digest) for digest in data.vectors.values())


def candidates(text: str) -> Iterator[str]:
    """Yields identifiers and sentences of a text; of a long sentence only the first MOST_CHARS characters. A single
    ASCII word counts only if it is an e-mail address, a number or a code, because other words may occur in unrelated
    metadata.

    Ids made by turnlog are left out, because they are stored in clear.
    """
    text = _ID_OF_OURS.sub('"', text)
    yield from (identifier for match in _IDENTIFIERS.finditer(text) if not _DATE.match(identifier := match[0].strip()))
    for part in _PARTS.findall(text):
        for sentence in _SENTENCES.split(part):
            candidate = sentence.strip()[:MOST_CHARS].strip()
            if len(candidate.encode(errors="replace")) >= KEY_BYTES and (" " in candidate or not candidate.isascii()):
                yield candidate


def long_sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a text that `candidates` shortens. Ids made by turnlog are left out."""
    for part in _PARTS.findall(_ID_OF_OURS.sub('"', text)):
        sentences = (sentence.strip() for sentence in _SENTENCES.split(part))
        yield from (sentence for sentence in sentences if len(sentence) > MOST_CHARS)


def parts_of(sentence: str) -> list[str]:
    """Returns the parts of a sentence: successive parts of at most PART_CHARS characters, and its end of that
    length."""
    end = sentence[-PART_CHARS:]
    return [*wrap(sentence, PART_CHARS)[:-1], end.partition(" ")[2] or end]


def chosen(strings: Iterable[str], most: int) -> list[str]:
    """Returns at most `most` strings: identifiers first, then strings of all lengths at even steps, longer ones
    first."""
    known = list(dict.fromkeys(strings))
    identifiers = [string for string in known if _IDENTIFIERS.fullmatch(string)]
    said = sorted(
        (string for string in known if not _IDENTIFIERS.fullmatch(string)), key=lambda text: -min(len(text), 24)
    )
    room = max(0, most - len(identifiers))
    spread = said if len(said) <= room else [said[at * len(said) // room] for at in range(room)]
    return [*identifiers[:most], *spread]


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _strings(item)
        case list() | tuple():
            for item in value:
                yield from _strings(item)
