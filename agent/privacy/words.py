"""Strings by which a person's words are known again: what the scan after an erasure looks for (M9). Pure.

They stand in memory only. A string counts as distinctive when it is long enough and nobody else has said it.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from turnlog.agent.privacy.needles import KEY_BYTES
from turnlog.events.contracts import Event, EventData
from turnlog.events.langgraph_contracts import CheckpointSaved, StoreItemPut
from turnlog.events.memory_contracts import Memory
from turnlog.events.sealing import fields_of
from turnlog.projectors.chunking import index_texts

MOST_CANDIDATES = 20_000
MOST_CHARS = 60
# Whitespace and JSON's own characters are written differently from store to store.
_PARTS = re.compile(r"[^\"\\\x00-\x1f\x7f\u2028\u2029]+")
_SENTENCES = re.compile(r"(?<=[.!?;。！？；，])")
_IDENTIFIERS = re.compile(
    r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{3,64}|\+?[0-9][0-9 -]{6,18}[0-9Xx]|[A-Z]{2}[A-Z0-9]{6,20}"
)
_ID_OF_OURS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # of an event, which stands in clear
_DATE = re.compile(r"(?:19|20)[0-9]{2}-?[01][0-9]-?[0-3][0-9]")
# Written by us or by an operator, the same for everybody; and fingerprints; and events told again.
_NOT_SAID = frozenset(
    {"system_prompt", "chunk_ids", "tiers", "vectors", "blobs", "lists", "writes", "recalled_chunks", "events"}
)


def words_of(data: EventData) -> Iterator[str]:
    """What an event's personal fields say, as candidates: identifiers, and parts of sentences."""
    said = data.model_dump(mode="json", exclude_none=True, include=dict(fields_of(type(data)).include))
    if isinstance(data, CheckpointSaved):  # the rest counts versions, whose digits look like somebody's number
        said["checkpoint"] = data.checkpoint.get("channel_values")
    for name, value in said.items():
        if name not in _NOT_SAID:
            for text in _strings(value):
                yield from candidates(text)


def text_hashes(event: Event) -> Iterator[bytes]:
    """SHA-256 of everything in the event that gets a vector, as the cache of vectors knows it.

    The rows may be gone already: of a conversation in the archive, of a memory that was forgotten.
    """
    data = event.data
    yield from (sha256(text.encode()).digest() for text in index_texts(event))
    if isinstance(memory := getattr(data, "memory", None), Memory):
        yield sha256(memory.content.encode()).digest()
    if isinstance(data, StoreItemPut):
        yield from (bytes.fromhex(found) for found in data.vectors.values())


def candidates(text: str) -> Iterator[str]:
    """Of single words only such as are numbers or codes: any other may stand in somebody's metadata."""
    yield from (one for found in _IDENTIFIERS.finditer(text) if not _DATE.match(one := found[0].strip()))
    for part in _PARTS.findall(text):
        for sentence in _SENTENCES.split(part):
            one = sentence.strip()[:MOST_CHARS].strip()
            if len(one.encode(errors="replace")) >= KEY_BYTES and (" " in one or not one.isascii()):
                yield one


def chosen(found: Iterable[str], most: int) -> list[str]:
    """At most so many: identifiers first, then from all over what was said, the longer before the shorter."""
    known = list(dict.fromkeys(found))
    identifiers = [one for one in known if _IDENTIFIERS.fullmatch(one)]
    said = sorted((one for one in known if not _IDENTIFIERS.fullmatch(one)), key=lambda one: -min(len(one), 24))
    room = max(0, most - len(identifiers))
    spread = said if len(said) <= room else [said[at * len(said) // room] for at in range(room)]
    return [*identifiers[:most], *spread]


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str() if not _ID_OF_OURS.fullmatch(value):
            yield value
        case dict():
            for item in value.values():
                yield from _strings(item)
        case list() | tuple():
            for item in value:
                yield from _strings(item)
