"""Appends conversations for tests that archive and restore them."""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers.sample_events import derivation, event, turn
from helpers.stage import Stage

from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.models.factory import make_models
from turnlog.agent.operations.jobs.archiving import archive_cold
from turnlog.agent.operations.jobs.job import OnProgress
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.events.contracts import Event, TopicsTagged
from turnlog.events.read import read_to
from turnlog.events.subjects import STORED_PREFIX
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.verify import verify_several

TEXTS = ("我在耶鲁大学读书，my GPA is 3.8", "很好！", "我喝茶", "好的", "我喝茶", "a\0b")
TABLES = ("messages", "memory_vectors", "memory_episodes", "last_questions", "thread_forks")
ARCHIVED_THREADS = "SELECT thread_id, user_id, events, restored_at IS NOT NULL FROM thread_archives ORDER BY thread_id"


def conversation(thread: str = "t", user: str | None = "ann") -> list[Event]:
    turns = [turn(text, "assistant" if n % 2 else "user", thread, n, user=user) for n, text in enumerate(TEXTS)]
    return [*turns, event(TopicsTagged(topics={"喝茶": 2}, derivation=derivation(1, 99)), thread, user=user)]


@contextlib.contextmanager
def no_progress(label: str) -> Iterator[OnProgress]:
    yield lambda done, total: None


async def append_conversations(stage: Stage, *threads: str, user: str | None = "ann") -> None:
    """Appends conversations and waits until they have topics and vectors."""
    for thread in threads or ("t",):
        await stage.runtime.log.append_many(conversation(thread, user))
    await embed_all(stage)


async def embed_all(stage: Stage) -> None:
    await stage.runtime.wait_until_projected()
    models = make_models(stage.runtime.settings)
    await embed_pending(stage.runtime, models.embedder)
    await models.close()
    await stage.runtime.wait_until_projected()


async def archive_threads(stage: Stage) -> dict[str, int]:
    done = await archive_cold(stage.runtime, datetime.now(UTC), lambda done, total: None)
    await stage.runtime.wait_until_projected()
    assert not done.errors
    return done.counts


async def restore_thread(stage: Stage, thread: str = "t") -> bool:
    async with stage.runtime.pool.connection() as conn:
        return await restored_if_archived(stage.runtime, conn, "default", thread)


async def table_rows(stage: Stage, tables: Sequence[str] = TABLES) -> dict[str, list[Any]]:
    return {name: await stage.rows(f"SELECT t::text FROM {name} t ORDER BY 1") for name in tables}


async def equals_rebuild(stage: Stage, names: Sequence[str] = tuple(BY_NAME)) -> bool:
    chosen = [BY_NAME[name] for name in names]
    results = await verify_several(stage.runtime.log, stage.runtime.database_url, chosen)
    return all(result.clean for result in results)


def stored_files(stage: Stage) -> list[Path]:
    return sorted(path for path in stage.runtime.settings.archive.rglob("*") if path.is_file())


async def log_bodies(stage: Stage) -> bytes:
    log = stage.runtime.log
    return b"\n".join([stored.body async for stored in read_to(log.nc, [f"{STORED_PREFIX}.>"], 1, await log.head())])
