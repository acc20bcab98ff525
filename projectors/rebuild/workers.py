"""Filling a build by several processes, each for its own threads: as a log of more partitions would be applied.

This process reads the log and hands every message to the worker of its thread. A worker decodes and applies them, and
keeps positions and parked events under a build name of its own; when all are done, theirs become the build's. Whatever
goes wrong in one of them ends the build.
"""

import asyncio
import contextlib
import json
import math
import pickle
import sys
import zlib
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.events.read import Stored
from turnlog.events.sealing import Keyring, key_ids_in
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.build import Batch, Build, Progress, RebuildStopped, batches, connect_to

_MAIN = "from turnlog.projectors.rebuild.workers import main; main()"
_WAITING = 4  # batches that a worker is given ahead

_ADOPT_POSITIONS = """
WITH theirs AS (DELETE FROM projection_positions WHERE starts_with(build, %(build)s || '/') RETURNING *)
INSERT INTO projection_positions (projection, build, partition, position, code_version)
SELECT projection, %(build)s, partition, min(position), code_version FROM theirs
GROUP BY projection, partition, code_version"""
_ADOPT_PARKED = "UPDATE dead_letters SET build = %(build)s WHERE starts_with(build, %(build)s || '/')"

OpenKeys = Callable[[], AbstractAsyncContextManager[Keyring | None]]


class WorkerFailed(TurnlogError):
    """A process of a rebuild or verification failed or was killed; the live tables are unchanged."""

    code = "rebuild-worker-failed"


@dataclass(frozen=True, slots=True)
class Workers:
    """count: how many processes. open_keys: opens users' keys in each of them; pickled to get there.

    events_each: with less work than that, fewer processes are started.
    """

    count: int
    open_keys: OpenKeys
    events_each: int = 25_000


@dataclass(frozen=True, slots=True)
class Task:
    """The first message to a worker. build: whose tables it fills; name: under which it keeps its positions."""

    open_keys: OpenKeys
    database_url: str
    projections: tuple[str, ...]
    build: str
    name: str
    partitions: tuple[int, ...]


async def fill(log: Log, database_url: str, build: Build, through: Mapping[int, int], workers: Workers | None) -> None:
    """Applies each partition's events up to `through` (partition → sequence), by several processes if that is faster.

    Raises RebuildStopped, GapInLog, WorkerFailed.
    """
    if workers is not None and all(BY_NAME.get(p.name) is p for p in build.projections):
        known = await _ids_known(build, through)
        count = min(workers.count, math.ceil(sum(known.values()) / max(1, workers.events_each)))
        if count > 1:
            names = tuple(projection.name for projection in build.projections)
            tasks = [
                Task(workers.open_keys, database_url, names, build.name, f"{build.name}/{number}", tuple(known))
                for number in range(count)
            ]
            await _fill_apart(log, build, known, tasks)
    for partition, end in through.items():
        await build.fill(log, partition, end)


async def _ids_known(build: Build, through: Mapping[int, int]) -> dict[int, int]:
    """Up to where event_ids holds every id: there workers agree on which event of an id is the first, in any order."""
    rows = await build.conn.execute(
        "SELECT partition, max(position) FROM projection_positions WHERE build = 'live' GROUP BY partition"
    )
    reached: dict[int, int] = dict(await rows.fetchall())
    return {partition: min(end, reached.get(partition, 0)) for partition, end in through.items()}


async def _fill_apart(log: Log, build: Build, through: Mapping[int, int], tasks: Sequence[Task]) -> None:
    heard: dict[str, Progress] = {}

    def hear(name: str, progress: Progress) -> None:
        heard[name] = progress
        build.events = sum(one.events for one in heard.values())
        build.progress(Progress(build.events, progress.remaining))

    queues = [asyncio.Queue[Batch | None](_WAITING) for _ in tasks]
    running = [asyncio.create_task(_run(task, queue, hear)) for task, queue in zip(tasks, queues, strict=True)]
    running.append(asyncio.create_task(_hand_out(log, through, queues)))
    try:
        await asyncio.gather(*running)
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    async with build.conn.transaction():
        await build.conn.execute(_ADOPT_POSITIONS, {"build": build.name})
        await build.conn.execute(_ADOPT_PARKED, {"build": build.name})


async def _hand_out(log: Log, through: Mapping[int, int], queues: Sequence["asyncio.Queue[Batch | None]"]) -> None:
    """Reads the partitions; every message goes to the queue of its thread."""
    for partition, end in through.items():
        async with contextlib.aclosing(batches(log, partition, 0, end, None)) as read:
            async for batch in read:
                shares: list[list[Stored]] = [[] for _ in queues]
                for stored in batch.stored:
                    shares[_share_of(stored.subject, len(queues))].append(stored)
                for queue, share in zip(queues, shares, strict=True):
                    await queue.put(batch._replace(stored=share))
    for queue in queues:
        await queue.put(None)


def _share_of(subject: str, count: int) -> int:
    """By tenant and thread: the subject less the event's type."""
    return zlib.crc32(subject.rpartition(".")[0].encode(errors="replace")) % count


async def _run(task: Task, queue: "asyncio.Queue[Batch | None]", hear: Callable[[str, Progress], None]) -> None:
    """One worker from its start to its end. Raises RebuildStopped, WorkerFailed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", _MAIN), stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    sending = asyncio.create_task(_send(process, task, queue))
    try:
        async for line in _lines(process):
            if "error" in line:
                kind = RebuildStopped if line["error"] == RebuildStopped.code else WorkerFailed
                raise kind(line["message"])
            hear(task.name, Progress(line["events"], line["remaining"]))
        if code := await process.wait():
            raise WorkerFailed(f"a worker process ended with exit code {code}; the live tables are unchanged. {_AGAIN}")
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await _end(process)


_AGAIN = "Run it again, with --workers 1 if memory is short"


async def _send(process: Process, task: Task, queue: "asyncio.Queue[Batch | None]") -> None:
    assert process.stdin is not None
    message: Task | Batch | None = task
    with contextlib.suppress(ConnectionError):  # the process has ended, and its exit code says why
        while True:
            body = pickle.dumps(message)
            process.stdin.write(len(body).to_bytes(_SIZE) + body)
            await process.stdin.drain()
            if message is None:
                return
            message = await queue.get()


_SIZE = 8


async def _lines(process: Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    async for line in process.stdout:
        yield json.loads(line)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert process.stdin is not None
    process.stdin.close()


def main() -> None:
    """A worker: a Task, its batches and None on stdin, pickled; lines of JSON on stdout: progress, or an error."""
    try:
        asyncio.run(_work())
    except EOFError:  # the process that started this one is gone
        sys.exit(1)
    except Exception as error:  # whatever it is, the other process has to know it
        code = error.code if isinstance(error, TurnlogError) else type(error).__name__
        _say({"error": code, "message": f"{error}"})
        sys.exit(1)


async def _work() -> None:
    task: Task = await _next_message()
    projections = [BY_NAME[name] for name in task.projections]
    async with task.open_keys() as keyring, await connect_to(task.database_url, task.build) as conn:
        build = Build(conn, projections, task.name, _report)
        for partition in task.partitions:
            await build.begin(partition)
        while (batch := await _next_message()) is not None:
            await build.apply(_with_keys(batch, keyring))


def _with_keys(batch: Batch, keyring: Keyring | None) -> Batch:
    if keyring is None:
        return batch
    keyring.prefetch(key_ids_in(one.body for one in batch.stored))
    return batch._replace(stored=[replace(one, keyring=keyring) for one in batch.stored])


async def _next_message() -> Any:
    return await asyncio.to_thread(_read_message)


def _read_message() -> Any:
    """Raises EOFError when the other process is gone."""
    size = sys.stdin.buffer.read(_SIZE)
    body = sys.stdin.buffer.read(int.from_bytes(size))
    if not body:
        raise EOFError
    return pickle.loads(body)  # noqa: S301  (from the process that started this one)


def _report(progress: Progress) -> None:
    _say({"events": progress.events, "remaining": progress.remaining})


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
