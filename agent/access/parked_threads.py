"""Appends settings, keys and agents, unless an event of their thread is parked, because they would then have no
effect.
"""

from collections.abc import Sequence

from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.projectors.engine.parking import first_parked, refuse_parked


async def append_unless_parked(runtime: Runtime, event: Event, reads: Sequence[str]) -> None:
    """Appends an event unless an earlier one of its thread is parked. reads: the projections that handle it. Raises
    ThreadParked, NotProjectedInTime, LogUnavailable."""
    async with runtime.reading(*reads, of=(event.tenant, event.thread)) as conn:
        refuse_parked(event.thread, await first_parked(conn, reads, event.tenant, event.thread))
    await runtime.log.append(event)
