"""Validates memories that a person writes, and derives the event ids of a call to remember. Raises InvalidMemory."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import ValidationError

from turnlog.agent.memory.deciding.policy import first_importance
from turnlog.agent.memory.deciding.writing import Place, Rows
from turnlog.events.contracts import EventData, Memory, MemoryKind
from turnlog.events.errors import TurnlogError
from turnlog.events.texts import storable

_EXTRA = uuid5(NAMESPACE_URL, "turnlog/memory-events")


@dataclass(frozen=True, slots=True)
class EventIds:
    """Derives the ids of events from candidates. removed: sequence of the thread's last removal if events before it
    have the same ids; otherwise 0.

    Each id depends on tenant and thread: the events of a shadow thread must differ from those of the user's own thread,
    and two tenants may use the same candidate id.
    """

    place: Place
    removed: int = 0

    def of(self, candidate: Memory, n: int) -> UUID:
        """Returns the id of the n-th event of a candidate."""
        return uuid5(candidate.id, f"{self._thread}/{n}")

    def of_extra(self, n: int, data: EventData) -> UUID:
        """Returns an id derived from the event's content."""
        return uuid5(_EXTRA, f"{self._thread}/{n}/{data.type}/{data.model_dump_json()}")

    @property
    def _thread(self) -> str:
        thread = f"{self.place.tenant}/{self.place.thread}"
        return f"{thread}@{self.removed}" if self.removed else thread


async def event_ids(
    rows: Rows, candidates: Sequence[Memory], extra: Sequence[EventData]
) -> tuple[EventIds, Mapping[UUID, int]]:
    """Returns the event ids of a call, and the sequences of the events that are stored already.

    A memory thread that was removed (a dropped shadow, for example) may be filled again with the same candidates. An
    event with an id from before the removal would be ignored as a duplicate, so ids after the removal are different.
    """
    ids = EventIds(rows.place)
    done = await _stored(rows, ids, candidates, extra)
    if done and (removed := await rows.removed_at()) > min(done.values()):
        ids = replace(ids, removed=removed)
        done = await _stored(rows, ids, candidates, extra)
    return ids, done


async def _stored(
    rows: Rows, ids: EventIds, candidates: Sequence[Memory], extra: Sequence[EventData]
) -> Mapping[UUID, int]:
    mine = [ids.of(candidate, 0) for candidate in candidates] + [ids.of_extra(n, data) for n, data in enumerate(extra)]
    return await rows.stored(mine)


MAX_CONTENT_CHARS, MAX_REASON_CHARS, MAX_METADATA_BYTES = 8_000, 500, 4_000


class InvalidMemory(TurnlogError):
    """The input cannot be stored as a memory; the message says what to change."""

    code = "invalid-memory"


def handmade_memory(id_: UUID, content: str, kind: MemoryKind, at: datetime, fields: dict[str, Any]) -> Memory:
    """Returns a memory that a person wrote. fields: other fields of Memory. Raises InvalidMemory."""
    usual = {
        "id": id_,
        "kind": kind,
        "content": checked_content(content),
        "importance": first_importance(kind, content),
        "confidence": 1.0,
        "origin": "user",
        "valid_from": at,
    }
    if fields.get("metadata") is not None:
        fields = fields | {"metadata": checked_metadata(fields["metadata"])}
    try:
        return Memory.model_validate(usual | fields)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise InvalidMemory(f"this is not a valid memory: {wrong}") from None


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metadata after encoding and decoding as JSON. Raises InvalidMemory if it is not a JSON object, or too
    large."""
    try:
        text = json.dumps(storable(metadata), ensure_ascii=False, allow_nan=False)
        size, decoded = len(text.encode()), json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMemory(f"the metadata is not JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise InvalidMemory("the metadata is not a JSON object; give names and values")
    if size > MAX_METADATA_BYTES:
        raise InvalidMemory(
            f"the metadata has {size} bytes as JSON, more than {MAX_METADATA_BYTES}; store it elsewhere"
        )
    return decoded


def checked_content(content: str) -> str:
    """Returns the content without surrounding space. Raises InvalidMemory when it is empty or too long."""
    text: str = storable(content.strip())
    if not text:
        raise InvalidMemory("the content of a memory must not be empty")
    if len(text) > MAX_CONTENT_CHARS:
        raise InvalidMemory(
            f"the content has {len(text)} characters, more than {MAX_CONTENT_CHARS}; a memory is one claim, "
            "so split it or import it as turns"
        )
    return text


def checked_reason(reason: str) -> str:
    """Returns the reason on one line. Raises InvalidMemory when it is empty or too long."""
    text: str = storable(" ".join(reason.split()))
    if not text:
        raise InvalidMemory("the reason is empty; say why the memory is archived")
    if len(text) > MAX_REASON_CHARS:
        raise InvalidMemory(f"the reason has {len(text)} characters, more than {MAX_REASON_CHARS}; shorten it")
    return text


def checked_share(name: str, value: float) -> float:
    """Returns the value. Raises InvalidMemory when it is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise InvalidMemory(f"{name} is {value:g}; give a number from 0 to 1")
    return value
