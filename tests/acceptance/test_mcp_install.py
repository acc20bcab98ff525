"""`turnlog mcp install` prints settings for each client, and a client with only these settings starts turnlog."""

import json
import tomllib
from pathlib import Path

import pytest
from helpers.callers import call
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from turnlog.consumers.cli.mcp import CLIENTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("client", "key", "kind"),
    [
        ("claude", "mcpServers", None),
        ("claude-code", "mcpServers", "stdio"),
        ("codex", "mcp_servers", None),
        ("cursor", "mcpServers", None),
        ("vscode", "servers", "stdio"),
        ("zed", "context_servers", None),
        ("gemini", "mcpServers", None),
        ("windsurf", "mcpServers", None),
    ],
)
async def test_each_client_gets_its_format_with_absolute_paths(
    client: str, key: str, kind: str | None, turnlog: Cli, tmp_path: Path
) -> None:
    done = await turnlog("mcp", "install", "--user", 'ann "é"', "--client", client)
    assert done.code == 0, done.err
    assert CLIENTS[client].file in done.err
    document = tomllib.loads(done.out) if client == "codex" else json.loads(done.out)
    assert list(document) == [key]
    server = document[key]["turnlog"]
    assert server.get("type") == kind
    assert server.get("startup_timeout_sec") == (60 if client == "codex" else None)
    assert Path(server["command"]).is_absolute() and Path(server["command"]).is_file()
    assert server["args"][-4:] == ["--user", 'ann "é"', "--tenant", "default"]
    assert Path(server["env"]["TURNLOG_HOME"]) == tmp_path


@pytest.mark.nightly
@pytest.mark.timeout(120)
async def test_a_client_with_only_what_was_printed_has_this_memory(turnlog: Cli, tmp_path: Path) -> None:
    server = (await turnlog("mcp", "install", "--user", "ann")).document["mcpServers"]["turnlog"]
    async with Client(StdioServerParameters(**server, cwd=str(tmp_path))) as client:
        await call(client, "remember", text="Ann likes tea.")
    assert "Ann likes tea." in (await turnlog("memories", "--user", "ann")).out
