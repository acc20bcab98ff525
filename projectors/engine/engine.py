"""The engine reads, decodes, applies and commits the events of one partition for all projections.

Rows and position are written in one transaction. Position and fencing are in Postgres (row lock, compare and swap,
session advisory lock); a gap, a moved position or a lost connection drops the batch, and reading starts again at the
position.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence

from turnlog.events import tracing
from turnlog.events.errors import GapInLog, KeyUnavailable
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.log import Log
from turnlog.events.read import OrderedReader
from turnlog.events.signing import Signer
from turnlog.events.stored import Stored
from turnlog.events.tasks import pause
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import TOGETHER_UP_TO, apply_batch
from turnlog.projectors.engine.database import connect, end_frozen, lock_key, take_locks
from turnlog.projectors.engine.incoming import Incoming, incoming
from turnlog.projectors.engine.lag import LARGE_BATCH
from turnlog.projectors.engine.positions import LIVE, PositionMoved, Positions
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.same_log import assert_same_log
from turnlog.projectors.engine.sharing import Share
from turnlog.projectors.engine.writer import Connection

logger = logging.getLogger("turnlog.projectors")
BATCH = 2_000
# The longest time in seconds that a transaction should take: its events become visible only at its end.
# Much shorter transactions would slow all events down, because an event takes twice as long in a small batch.
TRANSACTION_S = 1.0
FIRST_BACKOFF_S, MAX_BACKOFF_S, MAX_GAP_BACKOFF_S = 0.05, 5.0, 0.5
STANDBY_POLL_S = 0.5
LOOK_AGAIN_S = 0.5
# Seconds to wait for more events if the next batch would be small, because a transaction costs much more than an event
# in it.
REST_S = 0.003
# An import sends bursts of events with short pauses; background work begun in a pause would slow the next burst.
QUIET_S = 2.0


class Runner:
    """Keeps the projections of one partition up to date until stopped."""

    def __init__(
        self,
        log: Log,
        database_url: str,
        projections: Sequence[Projection],
        partition: int,
        share: Share | None = None,
        *,
        most: int = BATCH,
        rest_s: float = REST_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        """Creates the runner of one partition. share: the worker's share, if several workers divide the partitions.

        most: the largest size of a batch. rest_s: the wait for more events before a small batch. quiet_s: see
        `catching_up`.
        """
        self._log, self._url, self._partition, self._share = log, database_url, partition, share
        self._most, self._rest_s, self._quiet_s = most, rest_s, quiet_s
        self._projections = sorted(projections, key=lambda p: p.name)
        self._stop = asyncio.Event()
        self._reader: OrderedReader | None = None
        self._backoff = FIRST_BACKOFF_S
        self._large_at = -math.inf
        self._at_most = most
        self._gaps = 0  # consecutive gaps
        self._beat = Heartbeat("projectors", f"projectors-{partition}", asyncio.Event())
        self.last_error: str | None = None

    @property
    def catching_up(self) -> bool:
        """Returns whether a batch was large within the last `quiet_s` seconds, so that more events probably follow."""
        is_large = self._reader is not None and self._reader.taken >= LARGE_BATCH
        return is_large or time.monotonic() - self._large_at < self._quiet_s

    def stop(self) -> None:
        """Stops the runner after the current batch, without waiting for another batch."""
        self._stop.set()
        if self._reader is not None:
            self._reader.wake()

    async def run(self, beat: Heartbeat | None = None) -> None:
        """Applies batches until stopped. beat: records each batch, or the reason why no batch can be applied."""
        self._beat = beat or self._beat
        while not self._stop.is_set():
            try:
                async with self._owned_connection() as conn:
                    await self._follow(conn)
            except (GapInLog, PositionMoved) as reason:
                logger.info("partition %d reopens: %s", self._partition, reason)
                self._gaps += 1
                if self._gaps > 1:
                    self._beat.fail(f"cannot read the log: {reason}")
                self._backoff = FIRST_BACKOFF_S if self._gaps == 1 else min(self._backoff * 2, MAX_GAP_BACKOFF_S)
            except Exception as error:  # any error: a projector must not end silently
                self.last_error = f"{type(error).__name__}: {error}"
                self._beat.fail(self.last_error)
                logger.warning("partition %d waits: %s", self._partition, self.last_error)
                self._backoff = min(self._backoff * 2, MAX_BACKOFF_S)
            await pause(self._stop, self._backoff)

    @contextlib.asynccontextmanager
    async def _owned_connection(self) -> AsyncIterator[Connection]:
        """Opens a connection and waits until it holds the advisory locks; locks and transactions end with the
        connection."""
        conn = await connect(self._url)
        async with conn:
            # If Postgres crashes, rows and position are lost together, and the events are applied again from the log.
            await conn.execute("SET synchronous_commit = off")
            while not self._stop.is_set():
                if await self._take(conn):
                    try:
                        yield conn
                    finally:
                        if self._share is not None:
                            self._share.leave(self._partition)
                    return
                self._beat.beat()
                await pause(self._stop, STANDBY_POLL_S)
            yield conn

    async def _take(self, conn: Connection) -> bool:
        if self._share is not None and not self._share.room():
            return False
        names = [p.name for p in self._projections]
        if not await take_locks(conn, names, LIVE, self._partition):
            await end_frozen(conn, lock_key(names[0], LIVE), self._partition)
            return False
        if self._share is None or self._share.take(self._partition):
            return True
        await conn.execute("SELECT pg_advisory_unlock_all()")
        return False

    def _goes_on(self) -> bool:
        return not self._stop.is_set() and (self._share is None or self._share.keep(self._partition))

    async def _follow(self, conn: Connection) -> None:
        if self._stop.is_set():
            return
        old = await positions.outdated(conn, self._projections, LIVE)
        current = [p for p in self._projections if p.name not in old] or self._projections
        at = await positions.load(conn, current, LIVE, self._partition)
        await assert_same_log(self._log, conn)
        problem = f"rows of another version, which a rebuild replaces: {', '.join(old)}" if old else None
        clock = asyncio.get_running_loop().time
        again = clock() + LOOK_AGAIN_S
        async with self._log.reader(self._partition, at.lowest + 1) as reader:
            self._reader = reader
            try:
                while self._goes_on():
                    if old and clock() >= again:
                        if await positions.outdated(conn, self._projections, LIVE) != old:
                            break
                        again = clock() + LOOK_AGAIN_S
                    before, begun = at, time.monotonic()
                    at = await step(conn, reader, current, at, signer=self._log.signer, at_most=self._at_most)
                    if reader.taken >= self._at_most:
                        self._at_most = next_batch(reader.taken, time.monotonic() - begun, self._most)
                    self.last_error, self._backoff, self._gaps = problem, FIRST_BACKOFF_S, 0
                    self._beat.beat()
                    if reader.taken >= LARGE_BATCH:
                        self._large_at = time.monotonic()
                    if at is not before and reader.ahead < TOGETHER_UP_TO:
                        await pause(self._stop, self._rest_s)
            finally:
                self._reader = None


def next_batch(events: int, seconds: float, most: int = BATCH) -> int:
    """Returns the size of the next batch, from LARGE_BATCH to `most`, so that it takes about TRANSACTION_S. events,
    seconds: the size and the duration of the last full batch."""
    fitting = events * TRANSACTION_S / max(seconds, TRANSACTION_S / most)
    return min(most, max(LARGE_BATCH, min(round(fitting), 2 * events)))


async def step(
    conn: Connection,
    reader: OrderedReader,
    projections: Sequence[Projection],
    at: Positions,
    wait_s: float = 0.5,
    signer: Signer | None = None,
    at_most: int = BATCH,
) -> Positions:
    """Applies one batch: reads, decodes, then drops duplicates, applies and moves the position in one transaction.

    Raises KeyUnavailable at an event whose key cannot be fetched now; the events before it are applied.
    """
    stored = await reader.batch(at_most, wait_s)
    if not stored:
        await positions.assert_unmoved(conn, at)
        return at
    batch, waits = _decoded(stored, signer)
    if batch:
        with tracing.linked("project", (message.recorded.event.traceparent for message in batch if message.recorded)):
            at = await apply_batch(conn, projections, batch, at, through=batch[-1].seq, as_read=True)
    if waits is not None:
        raise waits
    return at


def _decoded(stored: Sequence[Stored], signer: Signer | None) -> tuple[list[Incoming], KeyUnavailable | None]:
    """Returns the decoded events before the first event whose key cannot be fetched, and that event's error, or
    None."""
    batch: list[Incoming] = []
    for message in stored:
        try:
            batch.append(incoming(message, signer))
        except KeyUnavailable as error:
            return batch, error
    return batch, None
