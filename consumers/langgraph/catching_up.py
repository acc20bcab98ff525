"""Reading what was written: waiting until the tables have what the log has, and saying so when they cannot."""

import asyncio

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.events.subjects import thread_token
from turnlog.projectors.lag import wait_for
from turnlog.projectors.writer import Connection

PROJECTIONS = ("checkpoints", "messages")


class ThreadParked(TurnlogError):
    """An event of the thread could not be projected; what follows it waits, and the state would be a lie."""

    code = "thread-parked"


async def thread_applied(log: Log, conn: Connection, tenant: str, thread: str, partition: int) -> None:
    """Until the tables have all that the log has of the thread. Raises NotProjectedInTime, ThreadParked."""
    await wait_for(conn, PROJECTIONS, partition, await log.thread_head(tenant, thread))
    rows = await conn.execute(
        "SELECT seq || ': ' || error FROM dead_letters WHERE tenant = %s AND thread_token = %s AND build = 'live' "
        "AND status = 'parked' AND projection = ANY(%s) ORDER BY seq LIMIT 1",
        (tenant, thread_token(thread), list(PROJECTIONS)),
    )
    found = await rows.fetchone()
    refuse_parked(thread, found[0] if found else None)


def refuse_parked(thread: str, parked: str | None) -> None:
    """parked: sequence and error of the first event that waits. Raises ThreadParked."""
    if parked is not None:
        raise ThreadParked(
            f"an event of thread {thread!r} could not be projected ({parked}), and later ones wait behind it; "
            "`turnlog dead-letters` shows it and can retry or drop it"
        )


async def all_applied(log: Log, conn: Connection) -> None:
    """Until the tables have all that the log has of every thread. Raises NotProjectedInTime."""
    heads = await asyncio.gather(*(log.partition_head(partition) for partition in range(log.partitions)))
    for partition, head in enumerate(heads):
        await wait_for(conn, PROJECTIONS, partition, head)
