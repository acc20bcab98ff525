"""Offers the tools of an MCP server, which has a URL or is started by a command."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnlog.agent.settings import team_secret
from turnlog.agent.team.json_schemas import checker, whole
from turnlog.agent.team.teams import McpServer
from turnlog.agent.team.tool_failures import Mistake, Unavailable
from turnlog.agent.team.tools import RETRIES, TIMEOUT_S, InvalidTool, Tool, Use

if TYPE_CHECKING:
    from mcp import types
    from mcp.client.client import Client

IDEMPOTENCY_KEY = "turnlog/idempotency-key"  # a key in the _meta of a call
MOST_PAGES = 100
CLOSE_S = 5.0
INVALID_PARAMS = -32602
CONNECTION_CLOSED = -32000
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class McpTools:
    """The tools of one MCP server; a Source. folder: where a command is run. timeout_s: for all attempts of a
    call together. The connection is opened at the first use, and again if it is lost."""

    name: str
    server: McpServer
    folder: str
    timeout_s: float = TIMEOUT_S
    _connection: "asyncio.Task[None] | None" = None
    _client: "asyncio.Future[Client] | None" = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def declared(self) -> Sequence[Tool]:
        return [self._tool(name, None) for name in self.server.tools]

    async def tools(self) -> Sequence[Tool]:
        """Returns the server's tools. Raises Unavailable if the connection cannot be opened, InvalidTool, MCPError and
        the errors of the transport."""
        client, cursor, listed = await self._connected(), None, dict[str, "types.Tool"]()
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            listed |= {known.name: known for known in page.tools}
            if (cursor := page.next_cursor) is None:
                break
        if missing := sorted(set(self.server.tools.values()) - listed.keys()):
            raise InvalidTool(
                f"the MCP server {self.name} has no tool {', '.join(missing)}; it has {', '.join(listed)}"
            )
        return [self._tool(name, listed[theirs]) for name, theirs in self.server.tools.items()]

    async def close(self) -> None:
        """Closes the connection, and ends the process that it started. Cancels a connection that does not end within
        CLOSE_S, and gives up after another CLOSE_S.
        """
        connection, client = self._connection, self._client
        self._connection = self._client = None
        if connection is not None:
            self._ended.set()
            is_open = client is not None and client.done()
            _, pending = await asyncio.wait([connection], timeout=CLOSE_S if is_open else 0)
            for task in pending:  # only once: another cancel would interrupt the transport while it ends its process
                task.cancel()
            if pending:
                await asyncio.wait(pending, timeout=CLOSE_S)

    def _tool(self, name: str, known: "types.Tool | None") -> Tool:
        theirs, hints = self.server.tools[name], known.annotations if known else None
        reads = bool(hints and hints.read_only_hint)
        writes = self.server.writes_to(name, not reads)
        schema: dict[str, Any] = {}
        parse: Callable[[Any], Mapping[str, Any]] = _unchecked
        if known is not None:
            parameters = {"type": "object", "properties": {}, **whole(known.input_schema, known.input_schema)}
            parse = checker(name, parameters)
            described = {"name": name, "description": known.description or known.title or name}
            schema = {"type": "function", "function": {**described, "parameters": parameters}}

        async def called(arguments: Mapping[str, Any], use: Use) -> Any:
            return await self._call(theirs, arguments, use)

        repeatable = not writes or name in self.server.repeatable or bool(hints and hints.idempotent_hint)
        tries, service = 0 if writes else RETRIES, f"mcp:{self.name}"
        return Tool(name, theirs, schema, parse, called, tries, self.timeout_s, writes, repeatable, service)

    async def _call(self, theirs: str, arguments: Mapping[str, Any], use: Use) -> Any:
        from mcp.shared.exceptions import MCPError

        try:
            client = await self._connected()
            meta: Any = {IDEMPOTENCY_KEY: str(use.effect)}
            meta |= {f"turnlog/{what}": getattr(use, what) for what in self.server.tells}
            result = await client.call_tool(theirs, dict(arguments), meta=meta)
        except Unavailable:
            raise
        except MCPError as error:
            if error.error.code == INVALID_PARAMS:
                raise Mistake(error.error.message) from error
            if error.error.code == CONNECTION_CLOSED:
                await self.close()
            raise Unavailable(error.error.message) from error
        except Exception as error:  # an error of the transport
            await self.close()
            raise Unavailable(f"the MCP server {self.name} does not answer ({_cause(error)})") from error
        if result.is_error:
            raise Mistake(_text(result.content) or "the tool failed and does not say why")
        return _value(result)

    async def _connected(self) -> "Client":
        """Waits until the connection is open, and returns the client. Raises Unavailable."""
        if self._connection is None or self._connection.done():
            self._ended, self._client = asyncio.Event(), asyncio.get_running_loop().create_future()
            self._connection = asyncio.create_task(self._hold(self._client, self._ended), name=f"mcp {self.name}")
        assert self._client is not None
        return await asyncio.shield(self._client)

    async def _hold(self, opened: "asyncio.Future[Client]", ended: asyncio.Event) -> None:
        """Keeps the connection open, in a task of its own, because a transport must be closed by the task that opened
        it.
        """
        try:
            async with self._transport() as client:
                opened.set_result(client)
                await ended.wait()
        except (Exception, asyncio.CancelledError) as error:
            if opened.done():
                logger.info("the connection to the MCP server %s ended: %s", self.name, _cause(error))
            else:
                why = f"the MCP server {self.name} cannot be reached: {_cause(error)}"
                opened.set_exception(Unavailable(why, may_be_done=False))
                opened.exception()  # marks the error as seen, because the waiting caller may have given up
            if isinstance(error, asyncio.CancelledError):
                raise

    @contextlib.asynccontextmanager
    async def _transport(self) -> "AsyncIterator[Client]":
        from mcp.client.client import Client  # this import loads a web server, which takes a third of a second
        from mcp.client.stdio import StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        server = self.server
        if server.command:
            command, *arguments = server.command
            environment = {name: value for name in server.env if (value := team_secret(name)) is not None}
            started = StdioServerParameters(command=command, args=arguments, env=environment, cwd=self.folder)
            async with Client(started) as client:
                yield client
        else:
            assert server.url is not None, "a server has a URL or a command"
            async with (
                create_mcp_http_client(headers=server.auth_headers()) as http,
                Client(streamable_http_client(server.url, http_client=http)) as client,
            ):
                yield client


def _cause(error: BaseException) -> str:
    """Returns a description of the error, or of the first error in an exception group, which transports raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _unchecked(arguments: Any) -> Mapping[str, Any]:
    """Returns the arguments for a tool whose schema is not known yet. Raises Mistake if they are not an object."""
    if not isinstance(arguments, Mapping):
        raise Mistake("the arguments should be an object")
    return arguments


def _value(result: "types.CallToolResult") -> Any:
    """Returns the structured value, or else the text, parsed if it is JSON."""
    structured = result.structured_content
    if structured is not None:
        is_wrapped = isinstance(structured, Mapping) and structured.keys() == {"result"}
        return structured["result"] if is_wrapped else structured
    text = _text(result.content)
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


def _text(content: "Sequence[types.ContentBlock]") -> str:
    lines = []
    for block in content:
        inner = getattr(block, "resource", block)
        text = getattr(inner, "text", None)
        lines.append(text if isinstance(text, str) else f"[{block.type} is left out: only text can be shown]")
    return "\n".join(lines)
