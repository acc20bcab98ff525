"""Connects fastmcp's unmodified client with a token of turnlog and by signing in (`make clients`)."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from helpers.api import Serve
from installed import PYTHON

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("signs_in", [False, True])
async def test_fastmcp_remembers_and_recalls_for_the_user(signs_in: bool, serve: Serve, tmp_path: Path) -> None:
    async with serve() as api:
        token = api.token("ann")
        environment = {"TURNLOG_MCP": f"{api.url}/mcp", "TURNLOG_AUTH": "oauth" if signs_in else token}
        browser = f"{PYTHON} {PROGRAMS}/consent.py {token} %s &"
        done = await asyncio.to_thread(
            subprocess.run,
            [PYTHON, PROGRAMS / "use_fastmcp.py"],
            env={**environment, "HOME": str(tmp_path), "BROWSER": browser},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert {"remember", "recall", "memories"} <= set(report["tools"])
        assert "Sesame" in report["recalled"]
        for user, knows in (("ann", True), ("bob", False)):
            async with api.client(user) as client:
                assert ("Sesame" in (await client.get("/api/memories")).text) is knows
