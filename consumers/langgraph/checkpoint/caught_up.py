"""Reads the state of a thread in the log, and waits until the tables contain it."""

from dataclasses import dataclass

from turnlog.events.log import Log, nats_errors
from turnlog.events.subjects import STREAM, parse_stored, thread_filter
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.parking import first_parked, refuse_parked
from turnlog.projectors.engine.writer import Connection

PROJECTIONS = ("checkpoints", "messages")
STATE_TYPES = (
    "checkpoint_saved",
    "checkpoint_writes_saved",
    "checkpoints_dropped",
    "history_pruned",
    "thread_deleted",
    "erased",
)


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a thread in the log.

    counts: the number of the thread's events by type, for the types that change what a reader gets. partition: None if
    the thread has no event. last_seq: the last sequence of the whole log.
    """

    counts: dict[str, int]
    last_seq: int
    partition: int | None


async def log_state(log: Log, tenant: str, thread: str) -> LogState:
    """Returns the state of a thread in the log with one request to the server, regardless of the thread's length.
    Raises LogUnavailable, InvalidToken."""
    of_thread = thread_filter(tenant, thread)
    with nats_errors(f"cannot ask NATS for thread {thread!r}; check NATS_URL, or start it with `turnlog up`"):
        state = (await log.nc.jetstream().stream_info(STREAM, subjects_filter=of_thread)).state
    counts = [(parse_stored(subject), count) for subject, count in (state.subjects or {}).items()]
    return LogState(
        {subject.type: count for subject, count in counts if subject.type in STATE_TYPES},
        state.last_seq,
        counts[0][0].partition if counts else None,
    )


async def thread_applied(log: Log, conn: Connection, tenant: str, thread: str, partition: int) -> None:
    """Waits until the tables have all of the thread's events on the log. Raises NotProjectedInTime,
    ThreadParked."""
    await wait_for(conn, PROJECTIONS, partition, await log.thread_head(tenant, thread))
    refuse_parked(thread, await first_parked(conn, PROJECTIONS, tenant, thread))


async def all_applied(log: Log, conn: Connection) -> None:
    """Waits until the tables have all events of the log. Raises NotProjectedInTime."""
    for partition, head in (await log.heads()).items():
        await wait_for(conn, PROJECTIONS, partition, head)
