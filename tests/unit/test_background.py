"""Finds the process of a `turnlog up` in the background, and detects that none is running."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from turnlog.agent.settings import Settings
from turnlog.consumers.servers.background import AlreadyUp, lock_path, only_one, running_pid, stop

UP = """
import os, sys
from pathlib import Path
from turnlog.agent.settings import Settings
from turnlog.consumers.servers.background import only_one
with only_one(Settings(home=Path(sys.argv[1]))):
    print("here", flush=True)
    input()
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[psutil.Process]:
    """Yields a process that is the `up` of the home and ends at a signal; nobody collects its exit status."""
    with subprocess.Popen(
        [sys.executable, "-c", UP, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        yield psutil.Process(process.pid)


async def test_an_up_whose_exit_status_nobody_collected_has_ended(up: psutil.Process, tmp_path: Path) -> None:
    """In a container nobody may collect it; `down` and the next `up` do not wait for that."""
    settings = Settings(home=tmp_path)
    assert running_pid(settings) == up.pid
    assert await stop(settings) == up.pid
    assert up.status() == psutil.STATUS_ZOMBIE
    assert (running_pid(settings), await stop(settings)) == (None, None)


def test_a_second_up_is_refused_while_the_first_one_starts(up: psutil.Process, tmp_path: Path) -> None:
    with pytest.raises(AlreadyUp, match=f"pid {up.pid}.*turnlog down"), only_one(Settings(home=tmp_path)):
        pass
    up.kill()
    up.wait()
    with only_one(Settings(home=tmp_path)):
        pass


def test_a_pid_reused_by_another_process_is_not_an_up(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    lock_path(settings).write_text(f"{psutil.Process().pid} ready")
    assert running_pid(settings) is None
