"""A small `make chaos`: real worker processes and servers are killed while events are appended."""

import asyncio
import gc
from pathlib import Path

import pytest
from chaos import runs
from chaos.fleet import Fleet
from chaos.run import Plan, ignore, run
from chaos.schedule import Kill
from helpers.servers import processes_left_in

# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.nightly
async def test_six_kills_during_appends_lose_and_duplicate_nothing(home: Path) -> None:
    result = await run(home, Plan(seed=4, events=1_500, kills=6, threads=24, lanes=8))
    assert result.violations == []
    assert sum(result.killed.values()) == 6
    assert {"projectors", "nats", "postgres", "agent"} <= result.killed.keys()
    assert result.acknowledged >= 1_500
    assert processes_left_in(home) == []
    gc.collect()


@pytest.mark.nightly
async def test_runs_of_a_killed_worker_have_each_effect_and_each_answer_once(home: Path) -> None:
    result = await runs.run(home, seed=4, runs=3, kills=3, progress=ignore)
    assert result.violations == []
    assert (result.runs, result.effects) == (3, 4) and 1 <= result.kills <= 3
    assert processes_left_in(home) == []
    gc.collect()


async def test_a_backend_is_killed_only_after_a_killed_postgres_is_back(home: Path) -> None:
    fleet, back = Fleet(home, seed=4), asyncio.Event()
    try:
        await fleet.start()
        await fleet.kill(Kill("postgres", 1, 2), asyncio.create_task(back.wait()))
        backend = asyncio.create_task(fleet.kill(Kill("postgres-backend", 1, 2), asyncio.create_task(back.wait())))
        await asyncio.sleep(0)  # until the kill has begun
        back.set()
        await backend
        await fleet.all_revived()
        assert fleet.killed == {"postgres": 1, "postgres-backend": 1}
    finally:
        await fleet.stop()
    assert processes_left_in(home) == []
