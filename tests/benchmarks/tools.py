"""Measures how long users wait for tools: a coding agent for its hook, and a test for the pytest fixture."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import turnlog
from tests.benchmarks.measuring import Row, ms, quantile
from tests.benchmarks.served import serving
from tests.benchmarks.stand import Stand
from turnlog.consumers.cli.hooks import PROGRAM, configuration_of

HOOK_MS, FIXTURE_MS = 100.0, 200.0
ISOLATED = (sys.executable, "-I", "-S")


async def measure(stand: Stand) -> list[Row]:
    return [await _hook(stand), await _fixture(stand)]


async def _hook(stand: Stand) -> Row:
    async with serving(stand, 0.0) as (ours, _):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "claude-code.json"
            url = f"http://127.0.0.1:{ours.port}"
            path.write_text(json.dumps(configuration_of("claude-code", url, ours.token("ann"))))
            said = {"session_id": "s", "cwd": "/", "hook_event_name": "UserPromptSubmit", "prompt": "I live in Lima."}
            p95 = await _p95_ms(stand, lambda: _run(*ISOLATED, str(PROGRAM), str(path), sent=json.dumps(said)))
    bare = await _p95_ms(stand, lambda: _run(*ISOLATED, "-c", "pass"))
    method = "p95 from the start of the process to its end; the floor is the bound, in brackets Python alone."
    floor = f"{ms(HOOK_MS)} ({ms(bare)})"
    return Row("a hook with a prompt", ms(p95), floor, p95 / HOOK_MS, None, ("<=", 1.0), method)


async def _run(*words: str, sent: str = "") -> None:
    process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE)
    await process.communicate(sent.encode())
    assert process.returncode == 0


async def _fixture(stand: Stand) -> Row:
    """Opens memories as the fixture in consumers/client/_pytest.py does: one for the session, and one for each test."""
    async with stand.empty_log(), stand.fresh_database() as database_url:
        with tempfile.TemporaryDirectory() as home:
            where: dict[str, Any] = {"home": Path(home), "nats_url": stand.nats_url, "database_url": database_url}

            async def of_a_test() -> None:
                async with turnlog.open(**where, roles=(), tenant=f"test-{uuid4().hex[:12]}"):
                    pass

            async with turnlog.open(**where):
                p95 = await _p95_ms(stand, of_a_test)
    method = "p95 from opening a memory in a new tenant to its end, while the session's roles run."
    return Row("turnlog_memory", ms(p95), ms(FIXTURE_MS), p95 / FIXTURE_MS, None, ("<=", 1.0), method)


async def _p95_ms(stand: Stand, work: Callable[[], Awaitable[None]]) -> float:
    took = []
    for _ in range(stand.sized(60, 10)):
        began = time.perf_counter()
        await work()
        took.append(1000 * (time.perf_counter() - began))
    return quantile(took, 0.95)
