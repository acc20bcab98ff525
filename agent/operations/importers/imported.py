"""Defines the values that importers yield. Event ids depend on the content, so that a repeated import adds nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import ValidationError

from turnlog.events.contracts import MemoryKind, TurnRecorded
from turnlog.events.contracts.base import UNDATED_FROM, in_calendar
from turnlog.events.errors import TurnlogError

# Raised when a field of foreign JSON is missing or has another type.
MALFORMED = (ValueError, TypeError, AttributeError, KeyError)


def reason_of(error: Exception) -> str:
    """Returns the reason of an error in plain words; a pydantic error is shortened to its first message and
    position."""
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    if isinstance(error, TypeError | AttributeError):
        return f"a field is of the wrong type: {error}"
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}, got {str(first['input'])[:40]!r}"


ONE_SECOND = timedelta(seconds=1)


class ImportFailed(TurnlogError):
    """The file cannot be imported; no more turns follow."""

    code = "import-failed"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults and overrides for a file, given on the command line.

    user: owner of the turns, overrides that of the file. thread: overrides the id in the file; if the file contains
    several conversations, the second becomes `thread-2`, and so on (in jsonl, all lines go to `thread`). base_time:
    time of the first turn without a time. It is fixed and not the file's date or the current time, because the time is
    part of the event id, and a copy of the file must lead to the same ids.
    """

    tenant: str = "default"
    user: str | None = None
    thread: str | None = None
    base_time: datetime = UNDATED_FROM


class ImportedTurn(NamedTuple):
    """One turn, validated once (in `data`). time is aware, with the UTC offset that the file gives; id is
    deterministic.

    is_dated: the file has a time for this turn or its conversation; otherwise the time is one second after that of the
    previous turn, or the base time for the first turn.
    """

    id: UUID
    thread: str
    label: str | None
    user: str | None
    time: datetime
    data: TurnRecorded
    is_dated: bool = True


class Rejected(NamedTuple):
    """An invalid piece of the file. where: its position. error: why it was refused."""

    where: str
    error: str


EMPTY = "empty"


class Skipped(NamedTuple):
    """A piece that is left out on purpose, such as a hidden system message. Pieces with equal reasons are counted
    together."""

    where: str
    reason: str


class Repeated(NamedTuple):
    """A piece with the same source_id and words as an earlier one; only the earlier one is stored."""

    where: str
    source_id: str


class ImportedMemory(NamedTuple):
    """A memory of another product. It has neither a quote nor a source turn, because nobody said it in these words.

    user: the person that it is about; None if neither the file nor the caller names one. source: the product. id: the
    memory's id in the product. since, until: the time when it was valid, as written in the file.
    """

    where: str
    user: str | None
    source: str
    id: str
    content: str
    kind: MemoryKind = "FACT"
    category: str | None = None
    since: Any = None
    until: Any = None
    metadata: Mapping[str, Any] = {}


Item = ImportedTurn | ImportedMemory | Rejected | Skipped | Repeated

_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_FREE_BITS = (0xFFF << 64) | ((1 << 62) - 1)


def import_id(tenant: str, thread: str, key: str, time: datetime) -> UUID:
    """Returns the event id of an imported turn: 48 bits of event time (ms), then 74 bits of sha256(tenant, thread,
    key), in the layout of UUID version 7 (RFC 9562, 5.7).

    The version is 7, not 8, as for all ids in the log: ids sort by event time, and Postgres and other readers extract
    the time. A hash replaces the random bits of 5.7; it is as evenly distributed and the same in a repeated import.
    Lengths are hashed too, so that no two (tenant, thread) pairs collide. Raises ValueError for a time that no event
    can have.
    """
    seed = f"{len(tenant)} {len(thread)} {tenant}{thread}{key}".encode()
    digest = int.from_bytes(sha256(seed).digest()[:10], "big")
    milliseconds = int(in_calendar(time).timestamp() * 1000)
    return UUID(int=(milliseconds << 80) | (digest & _FREE_BITS) | _VERSION_AND_VARIANT)


_MILLISECONDS_FROM = 1e11  # as seconds this is the year 5138


def parse_time(value: Any) -> datetime:
    """Returns the time of an ISO 8601 text, whose offset is kept (no offset means UTC), or of a number of seconds or
    milliseconds since 1970.

    Raises ValueError for anything else.
    """
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if abs(value) >= _MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise ValueError(f"time {str(value)[:40]!r} cannot be read; write it as 2026-05-08T13:56:00Z")


class Clock:
    """Dates the turns of a conversation; a turn without a time gets the time one second after the previous turn.

    is_dated: whether the file has a time for the last turn or for the conversation.
    """

    def __init__(self, start: datetime, is_dated: bool = False) -> None:
        self._start, self._is_conversation_dated = start.astimezone(UTC), is_dated
        self.is_dated = is_dated
        self._last: datetime | None = None

    def time(self, value: Any) -> datetime:
        """Returns the turn's time. value: the time in the file, or None. Raises ValueError."""
        self.is_dated = self._is_conversation_dated or value is not None
        if value is not None:
            time = parse_time(value)
        else:
            time = self._start if self._last is None else self._last + ONE_SECOND
        self._last = time
        return time


class ThreadNames:
    """Chooses thread ids: with --thread that id for the first conversation, then `thread-2` and so on; otherwise the id
    in the file, or else the file's stem."""

    def __init__(self, defaults: Defaults, stem: str) -> None:
        self._asked = defaults.thread
        self._stem = stem
        self._count = 0

    def next(self, own: Any = None) -> str:
        self._count += 1
        if self._asked is None and isinstance(own, str) and own:
            return own
        base = self._asked or self._stem
        return base if self._count == 1 else f"{base}-{self._count}"


class Conversation:
    """Makes the turns of one conversation; assigns their numbers, times and event ids."""

    def __init__(self, defaults: Defaults, thread: str, label: str | None, user: str | None, start: Any = None) -> None:
        self._tenant = defaults.tenant
        self.thread = thread
        self.label = label
        self.user = defaults.user or user
        self.number = 0
        self._clock = Clock(defaults.base_time if start is None else parse_time(start), start is not None)

    def turn(self, data: TurnRecorded, time: Any = None, key: str | None = None) -> ImportedTurn:
        """Returns a turn of the conversation. key: identifies it within the thread; by default its number and content
        do. Raises ValueError for an invalid time."""
        when = self._clock.time(time)
        key = key or f"M{self.number}\n{data.model_dump_json(exclude={'source_id', 'origin'})}"
        event_id = import_id(self._tenant, self.thread, key, when)
        return ImportedTurn(event_id, self.thread, self.label, self.user, when, data, self._clock.is_dated)
