"""Reads hourly counts of events, which the analytics subscriber computes from the log."""

from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row

from turnlog.agent.runtime import Runtime
from turnlog.events.subjects import check_place


@dataclass(frozen=True, slots=True)
class HourOfType:
    """Counts of one type of event in one hour. role: of turns, "" for other events. characters: of their texts."""

    hour: datetime
    type: str
    role: str
    events: int
    characters: int
    tokens_in: int
    tokens_out: int
    errors: int


async def activity(runtime: Runtime, tenant: str, hours: int) -> list[HourOfType]:
    """Returns a tenant's counts of the last `hours` hours, oldest first; [] if the subscriber never ran.

    Raises InvalidToken.
    """
    check_place(tenant)
    async with runtime.pool.connection() as conn:
        exists = await conn.execute("SELECT to_regclass('turnlog_analytics.hourly') IS NOT NULL")
        if (await exists.fetchone()) == (False,):
            return []
        cursor = conn.cursor(row_factory=class_row(HourOfType))
        await cursor.execute(
            "SELECT hour, type, role, events, characters, tokens_in, tokens_out, errors FROM turnlog_analytics.hourly "
            "WHERE tenant = %s AND hour > now() - make_interval(hours => %s) ORDER BY hour, type, role",
            (tenant, hours),
        )
        return await cursor.fetchall()
