"""Concurrent calls of the store are grouped."""

import asyncio

from turnlog.consumers.langgraph.store.store import Grouped


async def test_a_run_takes_whole_calls_in_order_as_many_as_one_batch_holds() -> None:
    runs: list[list[str]] = []

    async def run(calls: list[str]) -> list[int]:
        runs.append(calls)
        return [len(call) for call in calls]

    group = Grouped[str, int](run, at_most=10)
    calls = ["a" * 6, "b" * 4, "c" * 1, "d" * 12, "e" * 10, "f", ""]
    assert await asyncio.gather(*(group.do(call) for call in calls)) == [6, 4, 1, 12, 10, 1, 0]
    assert [[call[:1] for call in calls] for calls in runs] == [["a", "b"], ["c"], ["d"], ["e"], ["f", ""]]
