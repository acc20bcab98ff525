"""The daily look at every memory: what its age and importance have come to, as events (M4; E 8.5)."""

import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from uuid import UUID, uuid5

from turnlog.agent.memories.policy import Fate, Policy, fate
from turnlog.agent.memories.writing import Decided, MemoryWriter, Place, Rows
from turnlog.consumers.jobs.job import Done, OnProgress
from turnlog.consumers.runtime import Runtime
from turnlog.events.errors import TurnlogError
from turnlog.events.memory_contracts import MemoriesReviewed
from turnlog.events.subjects import memory_thread
from turnlog.projectors.memory_lookup import Standing, standing, standings
from turnlog.projectors.writer import Connection

logger = logging.getLogger("turnlog.consumers")
AT_ONCE = 1_000  # ids an event names
OF_JOB = UUID("5b0c2c0e-65a5-4e0b-9a52-1d5d0f3f7a41")


async def decay(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
    """Archives, expires and deletes what the policy says at due_at, in every tenant; memory stays flat.

    A user whose events cannot be written now is left for the next run and counted as an error.
    """
    policy, writer = Policy.of(runtime.settings), MemoryWriter(runtime.log, runtime.pool)
    counts, errors = Counter(looked_at=0, archived=0, deleted=0, expired=0), 0
    async with runtime.pool.connection() as conn:
        async for place, chunk in _due(conn, policy, due_at, counts, on_progress):
            try:
                counts.update(await _review(writer, place, chunk, policy, due_at))
            except TurnlogError as error:
                errors += 1
                logger.warning("the memories of one user wait for the next run: %s", error)
    return Done(dict(counts), errors)


async def _due(
    conn: Connection, policy: Policy, due_at: datetime, counts: Counter[str], on_progress: OnProgress
) -> AsyncIterator[tuple[Place, list[UUID]]]:
    """Users with the ids of memories that are due, at most AT_ONCE of them at once."""
    waiting: list[UUID] = []
    before: Place | None = None
    async for row in standings(conn):
        place = Place(row.tenant, row.user)
        if before is not None and waiting and (place != before or len(waiting) == AT_ONCE):
            yield before, waiting
            waiting = []
        before = place
        if row.thread == memory_thread(row.user) and _news(row, policy, due_at) is not None:  # no shadow
            waiting.append(row.id)
        counts["looked_at"] += 1
        if counts["looked_at"] % AT_ONCE == 0:
            on_progress(counts["looked_at"], None)
    if before is not None and waiting:
        yield before, waiting


async def _review(
    writer: MemoryWriter, place: Place, ids: list[UUID], policy: Policy, due_at: datetime
) -> Counter[str]:
    """Looks again at rows that have all the log has: a memory may have been said again just now."""

    async def decide(rows: Rows) -> Decided[Counter[str]]:
        fates = [
            (row.id, _news(row, policy, due_at)) for row in await standing(rows.conn, place.tenant, place.thread, ids)
        ]
        archived, deleted, expired = (_of(fates, one) for one in ("archive", "delete", "expire"))
        counts = Counter(archived=len(archived), deleted=len(deleted), expired=len(expired))
        if not counts.total():
            return Decided([], counts)
        data = MemoriesReviewed(due_at=due_at, archived=archived, deleted=deleted, expired=expired)
        named = ",".join(map(str, itertools.chain(archived, deleted, expired)))
        return Decided([(uuid5(OF_JOB, f"{place.tenant}/{place.thread}/{due_at.isoformat()}/{named}"), data)], counts)

    return await writer.write(place, decide)


def _news(row: Standing, policy: Policy, due_at: datetime) -> Fate | None:
    """What is to be done; None for a memory that stays as it is."""
    found = fate(row, due_at, policy)
    return None if found == "keep" or (found == "archive" and row.status == "archived") else found


def _of(fates: Iterable[tuple[UUID, Fate | None]], wanted: Fate) -> tuple[UUID, ...]:
    return tuple(id_ for id_, found in fates if found == wanted)
