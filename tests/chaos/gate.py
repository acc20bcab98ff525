"""A gate that slows the producers, so that processes are at work when they are killed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import psycopg

from turnlog.events.errors import TurnlogError
from turnlog.projectors.engine.database import connect

from .fleet import Fleet
from .ledger import Ledger

POLL_S = 0.05
OnProgress = Callable[[str, int], None]


@contextlib.asynccontextmanager
async def lag_watched(fleet: Fleet, ledger: Ledger, most: int, progress: OnProgress) -> AsyncIterator[asyncio.Event]:
    """Yields a gate that is closed while the transcript is more than `most` events behind and nothing is down on
    purpose.

    Without the gate, all events would be appended before a killed worker is back, and most kills would have no effect.
    """
    gate = asyncio.Event()
    gate.set()
    task = asyncio.create_task(_watch_lag(fleet, ledger, most, gate, progress))
    try:
        yield gate
    finally:
        task.cancel()


async def _watch_lag(fleet: Fleet, ledger: Ledger, most: int, gate: asyncio.Event, progress: OnProgress) -> None:
    position = 0
    while True:
        with contextlib.suppress(psycopg.Error, TurnlogError, OSError):
            async with await connect(fleet.where.database_url) as conn:
                while not fleet.down:
                    position = await _position(conn)
                    _open_or_close(gate, ledger.last_seq - position <= most)
                    progress("appending", ledger.count)
                    await asyncio.sleep(POLL_S)
        _open_or_close(gate, bool(fleet.down) or ledger.last_seq - position <= most)
        progress("appending", ledger.count)
        await asyncio.sleep(POLL_S)


def _open_or_close(gate: asyncio.Event, is_open: bool) -> None:
    gate.set() if is_open else gate.clear()


async def _position(conn: psycopg.AsyncConnection[tuple[object, ...]]) -> int:
    row = await (
        await conn.execute(
            "SELECT min(position)::bigint FROM projection_positions WHERE build = 'live' AND projection = 'messages'"
        )
    ).fetchone()
    return int(str(row[0])) if row and row[0] is not None else 0
