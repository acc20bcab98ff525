"""Operates on the log as a whole: shows which log the rows belong to, adopts another log or rebuilds from it, makes and
restores backups."""

import contextlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from nats.js.errors import NotFoundError
from psycopg import sql
from psycopg.errors import DeadlockDetected, LockNotAvailable
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from turnlog.agent.operations.lag import REACTORS
from turnlog.agent.runtime import Runtime
from turnlog.events import backup
from turnlog.events.backup import BackupFailed
from turnlog.events.errors import OtherLog
from turnlog.events.log import nats_errors
from turnlog.events.move import first_since, move_behind
from turnlog.events.progress import OnProgress
from turnlog.events.stream import ensure_stream
from turnlog.events.subjects import KEYS_STREAM, SESSION_BUCKET, STREAM
from turnlog.projectors.engine.lag import NotProjectedInTime, lag
from turnlog.projectors.engine.same_log import SAME_TIME, assert_same_log, note_log, projected
from turnlog.projectors.models.registry import PROJECTIONS

STEP_S = 2.0
LOCKED_S = 60.0


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The connected log and the log of the rows. head: the last sequence of the connected log. rows_from: the log that
    the rows were made from. rows_through: the last sequence that was applied to them.

    kept_through: after `adopt_log`, the sequence up to which rows may have no event in the log. problem: why nothing
    can be appended, or None.
    """

    log: str
    head: int
    rows_from: str | None
    rows_through: int
    kept_through: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A backup in a folder. log, keys: the last sequences of the two streams."""

    folder: str
    log: int
    keys: int


async def log_status(runtime: Runtime) -> LogStatus:
    """Returns the connected log and the log that the rows were made from. Raises LogUnavailable, OtherLog if there is
    no stream."""
    state, problem = await runtime.log.state(), None
    async with runtime.pool.connection() as conn:
        try:
            await assert_same_log(runtime.log, conn)
        except OtherLog as error:
            problem = str(error)
        rows = await projected(conn)
    return LogStatus(state.id, state.head, rows.log_id, rows.position, rows.kept_through, problem)


async def adopt_log(runtime: Runtime) -> LogStatus:
    """Keeps the rows and continues them with the events of the connected log; both stay readable.

    Events of the log whose sequences the rows already use are moved to later sequences. Raises LogUnavailable.
    """
    status = await log_status(runtime)
    if status.problem is None:
        return status
    async with runtime.pool.connection() as conn:
        rows = await projected(conn)
        if status.log != rows.log_id:
            common = 0
        elif status.head < rows.position or rows.stored_at is None:
            common = status.head
        else:
            common = await first_since(runtime.log, rows.stored_at + max(SAME_TIME, timedelta(microseconds=1))) - 1
        await move_behind(runtime.log, common, rows.position)
        await note_log(conn, status.log, rows.position)
        runtime.log.appender.allow(await assert_same_log(runtime.log, conn))
    return await log_status(runtime)


async def rebuild_from_log(runtime: Runtime, on_progress: OnProgress) -> LogStatus:
    """Deletes all rows, the copies of sessions and the reactors' consumers, and lets running workers make them again
    from the connected log; returns when the rows are complete.

    Raises LogUnavailable.
    """
    await _delete_rows(runtime, (await runtime.log.state()).id)
    js = runtime.log.nc.jetstream()
    # The bucket does not exist if no session was stored yet.
    with nats_errors("cannot empty the bucket of sessions"), contextlib.suppress(NotFoundError):
        await js.purge_stream(f"KV_{SESSION_BUCKET}")
    while True:
        try:
            await runtime.wait_until_projected(STEP_S)
            return await log_status(runtime)
        except NotProjectedInTime:
            async with runtime.pool.connection() as conn:
                lags = await lag(runtime.log, conn)
            on_progress(min(partition.position for partition in lags), max(partition.head for partition in lags))


@retry(
    retry=retry_if_exception_type((LockNotAvailable, DeadlockDetected)),
    stop=stop_after_delay(LOCKED_S),
    wait=wait_fixed(STEP_S),
    reraise=True,
)
async def _delete_rows(runtime: Runtime, log_id: str) -> None:
    """Deletes all rows made from the log and the durable consumers, and resets all positions. It is repeated while long
    reads lock the tables."""
    tables = [table.name for projection in PROJECTIONS for table in projection.tables]
    tables += ["event_ids", "event_ids_of_any_thread", "dead_letters"]
    async with runtime.pool.connection() as conn, conn.transaction():
        await conn.execute("SET LOCAL lock_timeout = '2s'")
        # In the engine's order, so that a projector that advances meanwhile waits and does not deadlock.
        await conn.execute(
            "SELECT FROM projection_positions WHERE build = 'live' ORDER BY partition, projection FOR UPDATE"
        )
        await conn.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(map(sql.Identifier, tables))))
        await conn.execute(
            "UPDATE projection_positions SET position = 0, stored_at = NULL, updated_at = now() WHERE build = 'live'"
        )
        await note_log(conn, log_id)
        # The lock is kept until the end, so that no worker records the position of a deleted consumer.
        await conn.execute("LOCK TABLE durables IN EXCLUSIVE MODE")
        rows = await conn.execute("DELETE FROM durables RETURNING name")
        # Workers recreate the consumers from the beginning of the log. A new consumer may not be in the table yet.
        for name in sorted({*REACTORS, *(name for (name,) in await rows.fetchall())}):
            with nats_errors(f"cannot delete the consumer {name}"), contextlib.suppress(NotFoundError):
                await runtime.log.nc.jetstream().delete_consumer(STREAM, name)


async def back_up_log(runtime: Runtime, folder: Path) -> BackedUp:
    """Writes both streams to files while they are in use. The log is written first, so that every event in the backup
    has its key.

    Raises BackupFailed, LogUnavailable.
    """
    through = dict.fromkeys((STREAM, KEYS_STREAM), 0)
    for stream in through:
        if stream == KEYS_STREAM and runtime.log.keyring is None:
            continue  # events are not encrypted
        try:
            (folder / stream).mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise BackupFailed(f"cannot make {folder / stream}: {error.strerror}; name a new folder") from None
        through[stream] = await backup.back_up(runtime.log.nc, stream, folder / stream)
    return BackedUp(str(folder), *through.values())


async def restore_log(runtime: Runtime, folder: Path) -> LogStatus:
    """Replaces the connected log by that of a backup. The stream of keys is restored only if it is empty; the next
    start adds keys from the table that the stream lacks. Raises BackupFailed, LogUnavailable."""
    js, settings = runtime.log.nc.jetstream(), runtime.settings
    source = folder / STREAM if (folder / STREAM).is_dir() else folder
    backup.backed_up(source)
    runtime.log.appender.refuse("the log is being restored from a backup")
    await _replaced(runtime, STREAM, source)
    if (folder / KEYS_STREAM).is_dir():
        with nats_errors("cannot look at the stream of keys"):
            try:
                used = (await js.stream_info(KEYS_STREAM)).state.messages > 0
            except NotFoundError:
                used = False
        if not used:
            await _replaced(runtime, KEYS_STREAM, folder / KEYS_STREAM)
    with nats_errors("cannot look at the restored stream"):
        await ensure_stream(js, settings.stream)
    return await log_status(runtime)


async def _replaced(runtime: Runtime, stream: str, folder: Path) -> None:
    with nats_errors(f"cannot delete the stream {stream}"), contextlib.suppress(NotFoundError):  # already lost
        await runtime.log.nc.jetstream().delete_stream(stream)
    await backup.restore(runtime.log.nc, stream, folder)
