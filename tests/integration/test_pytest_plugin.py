"""The fixtures that turnlog offers to other projects' tests."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnlog._opening import Opening

OTHERS = """
import turnlog

def test_blocking(turnlog_memory):
    with turnlog_memory as memory:
        memory.thread("t", user="ann").add("user", "My corgi is called Sesame.")
        memory.settled("ann")
        assert "Sesame" in memory.memories("ann")[0].content

async def test_alone(turnlog_memory):
    async with turnlog_memory as memory:
        assert await memory.threads() == []
"""


@pytest.fixture
def turnlog_servers(nats_url: str, database_url: str, tmp_path: Path) -> dict[str, Any]:
    """Replaces the plugin's fixture, which would start servers."""
    return {"home": tmp_path, "nats_url": nats_url, "database_url": database_url, "roles": ("projectors",)}


@pytest.fixture
def another_memory(turnlog_servers: dict[str, Any]) -> Opening:
    import turnlog

    return turnlog.open(**turnlog_servers, tenant="another")


async def test_a_test_has_a_separate_tenant(turnlog_memory: Opening, another_memory: Opening) -> None:
    async with turnlog_memory as memory, another_memory as another:
        await memory.thread("t", user="ann").add("user", "hello")
        assert await another.threads() == [] and len(await memory.threads()) == 1


@pytest.mark.nightly
def test_the_tests_of_another_project_use_the_plugin_with_separate_servers(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NATS_URL": "nats://nowhere.invalid:4222"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:langsmith_plugin"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
