"""Which event ids the log already holds for some threads: the read-back that settles every doubt (L4)."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from nats.aio.client import Client

from turnlog.events.read import read_to
from turnlog.events.stream import DUPLICATE_WINDOW_S
from turnlog.events.subjects import thread_filter

MAX_FILTERS = 200


async def recently_stored(nc: Client, threads: Sequence[tuple[str, str]]) -> dict[UUID, int]:
    """Event id → first sequence, of what (tenant, thread) pairs got within the dedup window and a minute more.

    Reads headers only. Raises GapInLog when NATS fails on the way.
    """
    since = datetime.now(UTC) - timedelta(seconds=DUPLICATE_WINDOW_S + 60)
    return await _ids(nc, threads, since)


async def all_stored(nc: Client, threads: Sequence[tuple[str, str]], start_seq: int = 1) -> dict[UUID, int]:
    """Event id → first sequence of everything the threads hold from start_seq on. Raises GapInLog."""
    return await _ids(nc, threads, None, start_seq)


async def _ids(
    nc: Client, threads: Sequence[tuple[str, str]], since: datetime | None, start_seq: int = 1
) -> dict[UUID, int]:
    found: dict[UUID, int] = {}
    filters = sorted({thread_filter(tenant, thread) for tenant, thread in threads})
    for start in range(0, len(filters), MAX_FILTERS):
        part = filters[start : start + MAX_FILTERS]
        async for stored in read_to(nc, part, start_seq, headers_only=True, since=since):
            if stored.message_id is not None:
                found.setdefault(stored.message_id, stored.seq)
    return found
