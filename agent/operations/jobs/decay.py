"""Implements the decay job, which archives, expires and deletes memories by their age and importance.

Input: every valid or archived memory of all tenants. Output: MemoriesReviewed events, one per user and batch.
"""

import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from uuid import UUID, uuid5

from turnlog.agent import metrics
from turnlog.agent.memory.deciding.policy import Fate, Policy, fate
from turnlog.agent.memory.deciding.writing import Decided, MemoryWriter, Place, Rows
from turnlog.agent.operations.jobs.job import Done
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import MemoriesReviewed
from turnlog.events.errors import TurnlogError
from turnlog.events.progress import OnProgress
from turnlog.events.subjects import is_memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.policy_lookup import PolicyRow, policy_rows, policy_rows_by_id

logger = logging.getLogger("turnlog.agent")
MAX_IDS = 1_000  # ids in one event
EVENT_NAMESPACE = UUID("5b0c2c0e-65a5-4e0b-9a52-1d5d0f3f7a41")


async def decay(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
    """Applies the policy at due_at to the memories of every tenant; its use of RAM is bounded.

    If a user's events cannot be written, this counts as an error and the user's memories wait for the next run.
    """
    policy, writer = Policy.of(runtime.settings), MemoryWriter(runtime.log, runtime.pool)
    counts, errors = Counter(looked_at=0, archived=0, deleted=0, expired=0), 0
    with metrics.DECAY_SECONDS.time():
        async with (
            runtime.pool.connection() as conn,
            aclosing(_due(conn, policy, due_at, counts, on_progress)) as all_due,
        ):
            async for place, chunk in all_due:
                try:
                    counts.update(await _review(writer, place, chunk, policy, due_at))
                except TurnlogError as error:
                    errors += 1
                    logger.warning("the memories of one user wait for the next run: %s", error)
                on_progress(counts["looked_at"], None)
    return Done(dict(counts), errors)


async def _due(
    conn: Connection,
    policy: Policy,
    due_at: datetime,
    counts: Counter[str],
    on_progress: OnProgress,
) -> AsyncGenerator[tuple[Place, list[UUID]], None]:
    """Yields the ids of memories that are due, up to MAX_IDS of one user at a time."""
    waiting: list[UUID] = []
    before: Place | None = None
    async with aclosing(policy_rows(conn)) as rows:
        async for row in rows:
            place = Place(row.tenant, row.user)
            if before is not None and waiting and (place != before or len(waiting) == MAX_IDS):
                yield before, waiting
                waiting = []
            before = place
            # Memories of trial derivations are left out.
            if is_memory_thread(row.thread, row.user) and _due_action(row, policy, due_at) is not None:
                waiting.append(row.id)
            counts["looked_at"] += 1
            if counts["looked_at"] % MAX_IDS == 0:
                on_progress(counts["looked_at"], None)
    if before is not None and waiting:
        yield before, waiting


async def _review(
    writer: MemoryWriter, place: Place, ids: list[UUID], policy: Policy, due_at: datetime
) -> Counter[str]:
    """Decides again on up-to-date rows, because a memory may have been said again meanwhile."""

    async def decide(rows: Rows) -> Decided[Counter[str]]:
        current = await policy_rows_by_id(rows.conn, place.tenant, place.thread, ids)
        fates = [(row.id, _due_action(row, policy, due_at)) for row in current]
        archived, deleted, expired = (
            tuple(id_ for id_, fate in fates if fate == wanted) for wanted in ("archive", "delete", "expire")
        )
        counts = Counter(archived=len(archived), deleted=len(deleted), expired=len(expired))
        if not counts.total():
            return Decided([], counts)
        data = MemoriesReviewed(due_at=due_at, archived=archived, deleted=deleted, expired=expired)
        named = ",".join(map(str, itertools.chain(archived, deleted, expired)))
        return Decided(
            [(uuid5(EVENT_NAMESPACE, f"{place.tenant}/{place.thread}/{due_at.isoformat()}/{named}"), data)], counts
        )

    return await writer.write(place, decide)


def _due_action(row: PolicyRow, policy: Policy, due_at: datetime) -> Fate | None:
    """Returns the action that is due; None when the memory stays as it is."""
    action = fate(row, due_at, policy)
    return None if action == "keep" or (action == "archive" and row.status == "archived") else action
