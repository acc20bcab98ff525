"""The commands `mcp`: the Model Context Protocol on stdio, and the configuration of common clients."""

import asyncio
import io
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer

from turnlog.agent.access import identity
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers import runtime as composed
from turnlog.consumers.api import principal
from turnlog.consumers.api.mcp import tools
from turnlog.consumers.cli.console import check_given, check_known, emit
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import command
from turnlog.events.texts import valid_json

ROLES = ("projectors", "reactors")


@dataclass(frozen=True, slots=True)
class Client:
    """A program that speaks MCP. file: where its configuration is. key: the field of the configuration that holds the
    servers. is_typed: whether each server states its type."""

    file: str
    key: str = "mcpServers"
    is_typed: bool = False


CLIENTS = {
    "claude": Client("claude_desktop_config.json, which Settings > Developer > Edit Config opens"),
    "claude-code": Client("~/.claude.json, or .mcp.json in a project", is_typed=True),
    "codex": Client("~/.codex/config.toml", "mcp_servers"),
    "cursor": Client("~/.cursor/mcp.json, or .cursor/mcp.json in a project"),
    "vscode": Client(".vscode/mcp.json, or what `MCP: Open User Configuration` opens", "servers", is_typed=True),
    "zed": Client("~/.config/zed/settings.json", "context_servers"),
    "gemini": Client("~/.gemini/settings.json"),
    "windsurf": Client("~/.codeium/windsurf/mcp_config.json"),
}
SECRETS = ("TURNLOG_API_SECRET", "TURNLOG_KEK")
User = Annotated[str, typer.Option("--user", "-u", help="The user whose memory it is.")]


app = commands()
below = group(app, "mcp", "Give a model turnlog's memory as tools, by the Model Context Protocol.")


@command(below)
async def stdio(settings: Settings, user: User) -> None:
    """Speak MCP on standard input and output, until the client closes them."""
    check_given("user", user)
    person = identity.granted(settings.tenant, user, "user", None, None, key=False)
    async with (
        composed.opened(settings, "turnlog-mcp") as runtime,
        composed.row_security(runtime),
        _playing_soon(runtime),
    ):
        server = tools.make_server(principal.Principal(person, runtime.for_tenant(person.tenant), runtime))
        lines = _ValidLines(sys.stdin.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lines.end)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(lines), "utf-8")
        await server.run_stdio_async()


@asynccontextmanager
async def _playing_soon(runtime: Runtime) -> AsyncIterator[None]:
    """Plays the roles while the block runs. They load in the background, because loading takes three seconds and a
    server must begin within ten seconds for clients. A role that fails ends the block."""

    async def play() -> None:
        roles = await asyncio.to_thread(import_module, "turnlog.consumers.roles")
        async with roles.playing(runtime, ROLES):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        playing = group.create_task(play())
        try:
            yield
        finally:
            playing.cancel()


class _ValidLines(io.RawIOBase):
    """Lines of JSON, made valid Unicode, because the MCP library does not answer invalid lines.

    The library reads them in a thread that cannot be cancelled. `end` makes the thread read an end of file, because
    clients may end a server by a signal while its standard input stays open.
    """

    def __init__(self, lines: int) -> None:
        self._lines, self._unread, self._left = lines, b"", b""
        self._ended, self._ending = os.pipe()

    def end(self) -> None:
        os.write(self._ending, b"\n")

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        self._left = self._left or valid_json(self._line())
        part, self._left = self._left[: len(room)], self._left[len(room) :]
        room[: len(part)] = part
        return len(part)

    def _line(self) -> bytes:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._lines, self._ended], [], [])
            part = b"" if self._ended in ready else os.read(self._lines, 65536)
            if not part:
                line, self._unread = self._unread, b""
                return line
            self._unread += part
        line, end, self._unread = self._unread.partition(b"\n")
        return line + end


@command(below)
async def install(
    settings: Settings, user: User, client: Annotated[str, typer.Option(help=", ".join(CLIENTS))] = "claude"
) -> None:
    """Print what to add to a client's configuration file; stderr names the file. Nothing is written."""
    check_known("client", client, CLIENTS)
    check_given("user", user)
    servers = {"NATS_URL": settings.nats_url, "DATABASE_URL": settings.database_url}
    server: dict[str, Any] = {
        **({"type": "stdio"} if CLIENTS[client].is_typed else {}),
        "command": sys.executable,
        "args": ["-m", "turnlog.consumers.cli", "mcp", "stdio", "--user", user, "--tenant", settings.tenant],
        "env": {"TURNLOG_HOME": str(settings.home.expanduser().absolute())}
        | {name: url for name, url in servers.items() if url},
    }
    if client == "codex":  # Codex waits only 10 s, which a busy machine may need to load the server
        server["startup_timeout_sec"] = 60
        sys.stdout.write(_toml(CLIENTS[client].key, server))
    else:
        emit({CLIENTS[client].key: {"turnlog": server}})
    typer.echo(f"Add it to {CLIENTS[client].file}; start the client again.", err=True)
    if secret := [name for name, value in zip(SECRETS, (settings.api_secret, settings.kek), strict=True) if value]:
        typer.echo(f"Add {' and '.join(secret)} to its environment too; secrets are not printed.", err=True)


def _toml(key: str, server: dict[str, Any]) -> str:
    """Returns the server as a TOML table. Strings and lists of strings are written the same way in JSON and TOML."""
    env = server.pop("env")
    tables = ((f"{key}.turnlog", server), (f"{key}.turnlog.env", env))
    return "\n".join(
        f"[{name}]\n" + "".join(f"{field} = {json.dumps(value, ensure_ascii=False)}\n" for field, value in each.items())
        for name, each in tables
    )
