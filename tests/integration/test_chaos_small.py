"""The small form of `make chaos`: real worker processes and servers are killed while events are appended (O4)."""

import gc
from pathlib import Path

import pytest
from chaos.run import Plan, run
from places import left_behind

# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"
)


async def test_six_kills_while_events_are_appended_lose_and_double_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    result = await run(home, Plan(seed=4, events=1_500, kills=6, threads=60, lanes=8))
    assert result.violations == []
    assert sum(result.killed.values()) == 6
    assert {"projectors", "nats", "postgres", "agent"} <= result.killed.keys()
    assert result.acknowledged >= 1_500
    assert left_behind(home) == []
    gc.collect()
