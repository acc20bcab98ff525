"""What every importer yields, and the event ids that make a second import of the same file add nothing."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

from turnlog.events.contracts import TurnRecorded
from turnlog.events.errors import TurnlogError

BASE_TIME = datetime(2000, 1, 1, tzinfo=UTC)
ONE_SECOND = timedelta(seconds=1)


class ImportFailed(TurnlogError):
    """The file as a whole cannot be imported; nothing more will come from it."""

    code = "import-failed"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the command line says and the file need not.

    user: owner of the turns, wins over the file's. thread: wins over the file's id; when the file holds
    several conversations the second is `thread-2`, and so on (jsonl: all lines go to `thread`).
    base_time: where turns without a time begin. It is fixed, not the file's date or the clock, because
    the time is part of the event id and a copied file must import to the same ids.
    """

    tenant: str = "default"
    user: str | None = None
    thread: str | None = None
    base_time: datetime = BASE_TIME


class ImportedTurn(NamedTuple):
    """One turn, validated once (in `data`). time is aware and in UTC; id is deterministic.

    is_dated: the file tells the time, of this turn or of what stands before it; else time counts from the base time.
    """

    id: UUID
    thread: str
    label: str | None
    user: str | None
    time: datetime
    data: TurnRecorded
    is_dated: bool = True


class Rejected(NamedTuple):
    """A piece of the file that is no turn: where it stands, and why it was refused."""

    where: str
    error: str


class Skipped(NamedTuple):
    """A piece that is left out on purpose, such as a hidden system message."""

    where: str
    reason: str


Item = ImportedTurn | Rejected | Skipped

_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_FREE_BITS = (0xFFF << 64) | ((1 << 62) - 1)


def import_id(tenant: str, thread: str, key: str, time: datetime) -> UUID:
    """The event id of an imported turn: 48 bits of event time (ms), then 74 bits of
    sha256(tenant, thread, key), in the layout of UUID version 7 (RFC 9562, 5.7).

    Version 7 and not 8 because every id in the log is one: ids sort by event time, and Postgres and other
    readers take the time from them. A hash stands where 5.7 asks for random bits; it spreads as well and
    gives the same id again. Lengths are hashed too, so that no two (tenant, thread) pairs can collide.
    Times before 1970 count as 1970.
    """
    seed = f"{len(tenant)} {len(thread)} {tenant}{thread}{key}".encode()
    digest = int.from_bytes(sha256(seed).digest()[:10], "big")
    milliseconds = max(0, int(time.timestamp() * 1000))
    return UUID(int=(milliseconds << 80) | (digest & _FREE_BITS) | _VERSION_AND_VARIANT)
