"""Embedding now what a caller is about to search."""

import asyncio
from collections.abc import Collection

from turnlog.agent.embedding.chunks import embed_pending
from turnlog.agent.models.errors import ModelError
from turnlog.agent.progress import OnProgress
from turnlog.agent.runtime import Runtime


async def embed_threads(
    runtime: Runtime, tenant: str, threads: Collection[str], timeout_s: float, progress: OnProgress
) -> str | None:
    """Makes vectors that the threads lack, for `timeout_s` at most; what is left is found by its words.

    Returns why the model failed, None where it did not.
    """
    await runtime.settle(names=("vectors",))
    stop = asyncio.Event()
    alarm = asyncio.get_running_loop().call_later(timeout_s, stop.set)
    try:
        await embed_pending(runtime, runtime.models.embedder, progress, stop, (tenant, sorted(threads)))
    except ModelError as error:
        return str(error)
    finally:
        alarm.cancel()
    return None
