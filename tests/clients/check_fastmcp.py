"""The client of fastmcp, unchanged, with a token of turnlog (`make clients`)."""

import asyncio
import json
import subprocess
from pathlib import Path

from helpers.api import Serve
from installed import PYTHON

PROGRAM = Path(__file__).parent / "programs/use_fastmcp.py"


async def test_fastmcp_remembers_and_recalls_for_the_user_of_its_token(serve: Serve, tmp_path: Path) -> None:
    async with serve() as api:
        environment = {"TURNLOG_MCP": f"{api.url}/mcp", "TURNLOG_KEY": api.token("ann"), "HOME": str(tmp_path)}
        done = await asyncio.to_thread(
            subprocess.run, [PYTHON, PROGRAM], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert {"remember", "recall", "memories"} <= set(found["tools"])
        assert "Sesame" in found["recalled"]
        for user, knows in (("ann", True), ("bob", False)):
            async with api.client(user) as client:
                assert ("Sesame" in (await client.get("/api/memories")).text) is knows
