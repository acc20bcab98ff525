"""Lists the benchmarks by name. Each runs in a separate process, because leftovers in memory slow later benchmarks."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.benchmarks import (
    answers,
    appending,
    contexts,
    embedding,
    evidence,
    langgraph_turns,
    load,
    mem0_peer,
    memories,
    memory_jobs,
    memory_recall,
    projecting,
    rebuild_memory,
    rebuilding,
    recall_scale,
    recalls,
    server,
    session_reads,
    team_runs,
    thread_lengths,
    tools,
    visible,
)
from tests.benchmarks.measuring import Row
from tests.benchmarks.stand import Stand

BENCHMARKS: dict[str, Callable[[Stand], Awaitable[list[Row]]]] = {
    "append": appending.measure,
    "project": projecting.measure,
    "rebuild": rebuilding.measure,
    "context": contexts.measure,
    "visible": visible.measure,
    "lengths": thread_lengths.measure,
    "embedding": embedding.measure,
    "memory": rebuild_memory.measure,
    "recall": recalls.measure,
    "scale": recall_scale.measure,
    "evidence": evidence.measure,
    "sessions": session_reads.measure,
    "langgraph": langgraph_turns.measure,
    "memories": memories.measure,
    "memory-recall": memory_recall.measure,
    "memory-jobs": memory_jobs.measure,
    "mem0": mem0_peer.measure,
    "answers": answers.measure,
    "runs": team_runs.measure,
    "server": server.measure,
    "load": load.measure,
    "tools": tools.measure,
}


async def measured(name: str, stand: Stand) -> list[Row]:
    """Returns the rows of the benchmark, and raises its errors."""
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        return await asyncio.get_running_loop().run_in_executor(processes, _measured, name, stand)


def _measured(name: str, stand: Stand) -> list[Row]:
    return asyncio.run(_rows(name, stand))


async def _rows(name: str, stand: Stand) -> list[Row]:
    return await BENCHMARKS[name](stand)
