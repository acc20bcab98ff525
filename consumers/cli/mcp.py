"""mcp: the Model Context Protocol on stdio, and the configuration of common clients."""

import io
import sys
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from turnlog.consumers.cli.console import check_given, check_known, emit
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import run
from turnlog.events.texts import valid_json

if TYPE_CHECKING:
    from turnlog.agent.settings import Settings

ROLES = ("projectors", "reactors")
# The key that each client's configuration file has the servers under.
CLIENTS = {"claude": "mcpServers", "cursor": "mcpServers", "vscode": "servers"}
User = Annotated[str, typer.Option("--user", "-u", help="Whose memory it is.")]


def register(app: typer.Typer) -> None:
    mcp = group(app, "mcp", "Give a model turnlog's memory as tools, by the Model Context Protocol.")
    add(mcp, stdio)
    add(mcp, install)


def stdio(user: User) -> None:
    """Speak MCP on standard input and output, until the client closes them."""

    async def work(settings: "Settings") -> None:
        from turnlog.agent.access.identity import granted

        check_given("user", user)
        identity = granted(settings.tenant, user, "user", None, None, key=False)
        from turnlog.consumers.api.caller import Caller  # loads the MCP library, which takes seconds
        from turnlog.consumers.api.mcp.tools import make_server
        from turnlog.consumers.roles import playing
        from turnlog.consumers.runtime import opened, row_security

        async with opened(settings, "turnlog-mcp") as runtime, row_security(runtime), playing(runtime, ROLES):
            server = make_server(Caller(identity, runtime.for_tenant(identity.tenant), runtime))
            sys.stdin = io.TextIOWrapper(io.BufferedReader(_ValidLines(sys.stdin.buffer)), "utf-8")
            await server.run_stdio_async()

    run(work)


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


def install(user: User, client: Annotated[str, typer.Option(help=", ".join(CLIENTS))] = "claude") -> None:
    """Print what to add to a client's configuration file, as JSON. Nothing is written."""

    async def work(settings: "Settings") -> None:
        check_known("client", client, CLIENTS)
        check_given("user", user)
        words = ["mcp", "stdio", "--user", user, "--tenant", settings.tenant]
        emit({CLIENTS[client]: {"turnlog": {"command": "turnlog", "args": words}}})

    run(work)
