"""mcp: the Model Context Protocol on stdio, and the configuration of common clients."""

import io
import sys
from typing import Annotated, Any, BinaryIO

import typer

from turnlog.agent.access import identity
from turnlog.agent.settings import Settings
from turnlog.consumers import roles
from turnlog.consumers import runtime as composed
from turnlog.consumers.api import principal
from turnlog.consumers.api.mcp import tools
from turnlog.consumers.cli.console import check_given, check_known, emit
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import command
from turnlog.events.texts import valid_json

ROLES = ("projectors", "reactors")
# The key that each client's configuration file has the servers under.
CLIENTS = {"claude": "mcpServers", "cursor": "mcpServers", "vscode": "servers"}
User = Annotated[str, typer.Option("--user", "-u", help="Whose memory it is.")]


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
        roles.playing(runtime, ROLES),
    ):
        server = tools.make_server(principal.Principal(person, runtime.for_tenant(person.tenant), runtime))
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ValidLines(sys.stdin.buffer)), "utf-8")
        await server.run_stdio_async()


class _ValidLines(io.RawIOBase):
    """Lines of JSON as valid Unicode; the MCP library answers nothing to others."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines, self._left = lines, b""

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        self._left = self._left or valid_json(self._lines.readline())
        part, self._left = self._left[: len(room)], self._left[len(room) :]
        room[: len(part)] = part
        return len(part)


@command(below)
async def install(
    settings: Settings, user: User, client: Annotated[str, typer.Option(help=", ".join(CLIENTS))] = "claude"
) -> None:
    """Print what to add to a client's configuration file, as JSON. Nothing is written."""
    check_known("client", client, CLIENTS)
    check_given("user", user)
    words = ["mcp", "stdio", "--user", user, "--tenant", settings.tenant]
    emit({CLIENTS[client]: {"turnlog": {"command": "turnlog", "args": words}}})
