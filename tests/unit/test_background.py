"""`turnlog up` in the background: which process it is, and when it is none."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from turnlog.agent.settings import Settings
from turnlog.consumers.servers.background import pid_path, running_pid, stop


@pytest.fixture
def up() -> Iterator[psutil.Process]:
    """A process that ends at a signal and whose exit status stays where it is."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)


async def test_an_up_whose_exit_status_nobody_collected_has_ended(up: psutil.Process, tmp_path: Path) -> None:
    """In a container nobody may ever do so; `down` and the next `up` do not wait for it."""
    settings = Settings(home=tmp_path)
    pid_path(settings).write_text(json.dumps({"pid": up.pid, "created": up.create_time()}), "utf-8")
    assert running_pid(settings) == up.pid
    assert await stop(settings) == up.pid
    assert up.status() == psutil.STATUS_ZOMBIE
    assert (running_pid(settings), await stop(settings)) == (None, None)
