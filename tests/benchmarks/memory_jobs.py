"""Measures the nightly jobs over all memories of one user, in a separate process whose memory use is recorded.

That process runs `python -m tests.benchmarks.memory_jobs JOB DUE_AT` with NATS_URL and DATABASE_URL in the environment.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import cycle
from typing import Any

from tests.benchmarks.conversations import Conversations
from tests.benchmarks.many_memories import BEGIN, cache, memories
from tests.benchmarks.measuring import Row
from tests.benchmarks.rebuild_memory import MEGABYTE, Peak
from tests.benchmarks.recalls import DIMENSIONS, RandomVectors
from tests.benchmarks.stand import Stand, fill, worker
from turnlog.agent.operations.jobs.job import run_now
from turnlog.agent.operations.jobs.job_states import all_jobs
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.registry import BY_NAME

APART = timedelta(minutes=1)
AGAIN = 100  # one memory in AGAIN repeats the memory before it
MOST_S = {"compaction": 120.0, "decay": 60.0}


async def measure(stand: Stand) -> list[Row]:
    many = stand.sized(100_000, 10_000)
    few = await _jobs(stand, many // 10)
    return [_row(job, many, took, few[job]) for job, took in (await _jobs(stand, many)).items()]


def _row(job: str, many: int, took: dict[str, Any], few: dict[str, Any]) -> Row:
    counts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in took["counts"].items() if value)
    return Row(
        f"{job}, {many:,} memories of one user",
        f"{took['seconds']:.1f} s, {took['grown'] / MEGABYTE:.0f} MB",
        f"{few['seconds']:.1f} s, {few['grown'] / MEGABYTE:.0f} MB",
        took["seconds"] / few["seconds"],
        None,
        None,
        f"Seconds of the whole job (asked for: {MOST_S[job]:g} s) and how much its process's resident memory grows at "
        f"most: {counts}. Random vectors of {DIMENSIONS} dimensions; one memory in {AGAIN} says again what another "
        "says. Floor: the same job over a tenth of the memories.",
    )


async def _jobs(stand: Stand, many: int) -> dict[str, dict[str, Any]]:
    """Runs the compaction and then the review of all memories a year later. Compaction must be first, because it
    ignores archived memories."""
    texts = list(_texts(stand.conversations, many))
    async with stand.empty_log() as log, stand.fresh_database() as url, await connect(url) as conn:
        vectors = RandomVectors().vectors(many)
        # Memories with the same meaning have the same vector.
        own = (vectors[number - 1 if text.endswith("!") and number else number] for number, text in enumerate(texts))
        await cache(conn, texts, own)
        await fill(log, memories(texts, APART))
        async with worker(stand, url):
            await wait_for(conn, tuple(BY_NAME), 0, await log.partition_head(0), timeout_s=900)
            last = BEGIN + many * APART
            return {
                "compaction": await _child(stand.nats_url, url, "compaction", last),
                "decay": await _child(stand.nats_url, url, "decay", last + timedelta(days=365)),
            }


def _texts(conversations: Conversations, count: int) -> Iterator[str]:
    """Yields different texts, except that every AGAIN-th text differs from the one before only in its last
    character."""
    said = cycle([text for text in conversations.texts(2 * count) if len(text) > 25] or ["nothing"])
    before = ""
    for number in range(count):
        before = f"{before}!" if number % AGAIN == AGAIN - 1 else f"{next(said)} {number}"
        yield before


async def _child(nats_url: str, database_url: str, job: str, due_at: datetime) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.memory_jobs", job, due_at.isoformat()),
        env={**os.environ, "NATS_URL": nats_url, "DATABASE_URL": database_url},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output)
    return result


async def _run(name: str, due_at: datetime) -> dict[str, Any]:
    settings = Settings()
    job = next(job for job in all_jobs(settings) if job.name == name)
    async with opened(settings, "turnlog-bench-job") as runtime:
        with Peak() as peak:
            ran = await run_now(runtime, job, due_at, lambda done, total: None)
    assert not ran.errors
    return {"seconds": ran.duration_ms / 1_000, "grown": peak.grown, "counts": ran.counts}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(sys.argv[1], datetime.fromisoformat(sys.argv[2])))))
