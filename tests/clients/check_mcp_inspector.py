"""Runs the MCP inspector's command line against the server (`make clients`)."""

import asyncio
import json
import subprocess
from typing import Any

from helpers.api import Serve
from installed import HOME, node

INSPECTOR = HOME / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


async def inspect(url: str, token: str, *words: str) -> Any:
    head = ["--cli", f"{url}/mcp", "--transport", "http", "--header", f"Authorization: Bearer {token}"]
    done = await asyncio.to_thread(
        subprocess.run, [node(), INSPECTOR, *head, *words], capture_output=True, text=True, env={"HOME": str(HOME)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


async def test_the_inspector_lists_and_calls_tools_and_reads_the_profile(serve: Serve) -> None:
    async with serve() as api:
        url, token = api.url, api.token()
        tools = await inspect(url, token, "--method", "tools/list")
        assert {"remember", "recall"} <= {tool["name"] for tool in tools["tools"]}
        call = ["--method", "tools/call", "--tool-name"]
        await inspect(url, token, *call, "remember", "--tool-arg", "text=My corgi is called Sesame.")
        recalled = await inspect(url, token, *call, "recall", "--tool-arg", "query=corgi")
        assert "Sesame" in json.dumps(recalled)
        (profile,) = (await inspect(url, token, "--method", "resources/list"))["resources"]
        read = await inspect(url, token, "--method", "resources/read", "--uri", profile["uri"])
        assert "ann" in read["contents"][0]["text"]
