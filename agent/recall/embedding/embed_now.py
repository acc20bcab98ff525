"""Embeds texts immediately, for a caller that is about to search them."""

import asyncio
from collections.abc import Collection

from turnlog.agent.counting import counted
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.agent.recall.embedding.pending import pending_count
from turnlog.agent.runtime import Runtime
from turnlog.events.progress import OnProgress
from turnlog.events.tasks import within

READS = ("vectors",)


async def embed_threads(
    runtime: Runtime, tenant: str, threads: Collection[str], timeout_s: float, on_progress: OnProgress
) -> str | None:
    """Makes missing vectors of the threads within `timeout_s`. Texts without a vector can still be found by their
    words.

    Returns why some vectors are missing; None if all exist.
    """
    try:
        await within(timeout_s, _embed_when_projected(runtime, tenant, threads, on_progress))
    except ModelError as error:
        return f"keyword search only: {error}"
    except TimeoutError:
        pass
    async with runtime.pool.connection() as conn:
        left = await pending_count(conn, await runtime.vector_model(), None, tenant, sorted(threads))
    return f"{counted(left, 'chunk')} without a vector yet, found by words alone" if left else None


async def _embed_when_projected(
    runtime: Runtime, tenant: str, threads: Collection[str], on_progress: OnProgress
) -> None:
    await asyncio.gather(*(runtime.wait_until_thread_projected(tenant, thread, READS) for thread in threads))
    await embed_now(runtime, tenant, threads, on_progress)


async def embed_now(runtime: Runtime, tenant: str, threads: Collection[str], on_progress: OnProgress) -> int:
    """Makes missing vectors of the threads, at normal priority because somebody waits; returns their number.

    Raises ModelError.
    """
    embedder = make_embedder(runtime.settings, background=False)
    try:
        return await embed_pending(runtime, embedder, on_progress, only=(tenant, sorted(threads)))
    finally:
        await embedder.close()
