"""Measures that the peak memory of a rebuild of the messages does not grow when there are ten times as many events.

The measured process runs `python -m tests.benchmarks.rebuild_memory NATS_URL DATABASE_URL`.
"""

import asyncio
import json
import sys
import threading
from itertools import islice

import psutil

from tests.benchmarks.measuring import Row
from tests.benchmarks.stand import Stand, fill
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.rebuild.rebuild import rebuild

TIMES = 10
SAMPLE_S = 0.01
MEGABYTE = 1024 * 1024


async def measure(stand: Stand) -> list[Row]:
    few = stand.sized(20_000, 3_000)
    events = iter(stand.conversations.events(few * TIMES))
    async with stand.empty_log() as log, stand.fresh_database() as url:
        await fill(log, islice(events, few))
        small = await _child(stand.nats_url, url)
        await fill(log, events)
        large = await _child(stand.nats_url, url)
    method = (
        f"How much the resident memory of a process of its own grows at most while it rebuilds {large['events']:,} "
        f"events, sampled every {1000 * SAMPLE_S:g} ms. Floor: the same with {small['events']:,}."
    )
    return [
        Row(
            "memory of a rebuild",
            f"{large['grown'] / MEGABYTE:.1f} MB",
            f"{small['grown'] / MEGABYTE:.1f} MB",
            large["grown"] / small["grown"],
            None,
            ("<=", 1.5),
            method,
        )
    ]


async def _child(nats_url: str, database_url: str) -> dict[str, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.rebuild_memory", nats_url, database_url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    result: dict[str, int] = json.loads(output)
    return result


async def _rebuild(nats_url: str, database_url: str) -> dict[str, int]:
    log = await Log.connect(nats_url, StreamOptions())
    with Peak() as peak:
        done = await rebuild(log, database_url, MESSAGES)
    await log.close()
    return {"events": done.events, "grown": peak.grown}


class Peak:
    """Measures by how many bytes the private memory of this process grows at most while the block runs.

    Pages of files do not count, because the system can reclaim them at any time.
    """

    def __init__(self) -> None:
        self._process, self._over = psutil.Process(), threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.grown = 0

    def __enter__(self) -> "Peak":
        self._before = self._own()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.grown = max(self.grown, self._own() - self._before)

    def _own(self) -> int:
        memory = self._process.memory_info()
        return int(memory.rss - getattr(memory, "shared", 0))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_rebuild(*sys.argv[1:]))))
