"""Implements the archive job, which archives conversations without a recent turn."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from turnlog.agent.conversations.archive.archiving import archive_thread
from turnlog.agent.conversations.archive.files import ArchiveDamaged
from turnlog.agent.extras import MissingExtra
from turnlog.agent.operations.jobs.job import Done
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError
from turnlog.events.progress import OnProgress
from turnlog.events.subjects import thread_token
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.thread_lookup import Cold, cold_threads, stopped_tokens

logger = logging.getLogger("turnlog.agent")
AT_ONCE = 500


async def archive_cold(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
    """Archives conversations of every tenant that had no turn for MEMORY_ARCHIVE_THREADS_AFTER_DAYS; 0 disables it."""
    days = runtime.settings.archive_threads_after_days
    return await archive_older(runtime, due_at - timedelta(days=days), on_progress) if days else Done({"archived": 0})


async def archive_older(runtime: Runtime, before: datetime, on_progress: OnProgress) -> Done:
    """Archives conversations without a turn since `before`. If a conversation cannot be archived, this is logged and
    counted, and the next run tries it again."""
    counts, errors = Counter(archived=0, left_out=0), 0
    async with runtime.pool.connection() as conn:
        async for cold in cold_ones(conn, before):
            try:
                is_archived = await archive_thread(runtime.log, runtime.settings.archive, cold)
                counts["archived" if is_archived else "left_out"] += 1
            except (TurnlogError, OSError) as error:
                errors += 1
                logger.warning("a conversation waits for the next run of the archive: %s", error)
                if isinstance(error, (OSError, ArchiveDamaged, MissingExtra)):
                    break  # the disk or the installation is broken, so the next conversation would fail too
            on_progress(counts.total(), None)
    return Done(dict(counts), errors)


async def cold_ones(conn: Connection, before: datetime) -> AsyncIterator[Cold]:
    """Yields the conversations of all tenants that may be archived; threads with parked events are left out."""
    last: Cold | None = None
    stopped: dict[str, set[str]] = {}
    while batch := await cold_threads(conn, before, last, AT_ONCE):
        last = batch[-1]
        for cold in batch:
            if cold.tenant not in stopped:
                stopped[cold.tenant] = await stopped_tokens(conn, cold.tenant)
            if thread_token(cold.thread) not in stopped[cold.tenant]:
                yield cold
