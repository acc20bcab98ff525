"""Makes tools of typed Python functions, which a model may call. The docstring is the tool's description, and the
parameters give its schema.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints, overload
from uuid import UUID

from pydantic import ConfigDict, Field, create_model
from pydantic_core import to_jsonable_python

from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.team.function_schemas import parameters_schema, read_docstring
from turnlog.agent.team.tool_failures import Mistake as Mistake
from turnlog.agent.team.web_search import WebSearch
from turnlog.events.errors import TurnlogError

TIMEOUT_S, RETRIES = 30.0, 2
logger = logging.getLogger(__name__)
# Writes that were given up but are still running: tenant, user, tool.
LATE_WRITES = dict[asyncio.Future[Any], tuple[str, str, str]]()
Function = TypeVar("Function", bound=Callable[..., Any])
Write = Callable[[str, str], Awaitable[str]]


class InvalidTool(TurnlogError):
    """A function, or an operation of a server, cannot be a tool."""

    code = "invalid-tool"


class Records(Protocol):
    """A user's own documents by kind and key, which tools read and write."""

    async def get(self, kind: str, key: str) -> dict[str, Any] | None: ...

    async def all(self, kind: str) -> dict[str, dict[str, Any]]: ...

    async def put(self, kind: str, key: str, value: Mapping[str, Any], effect: UUID) -> None:
        """Stores a record only once for each `effect`, kind and key, however often it is put."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """The circumstances of a tool call: who calls it, when and for what. A function gets it as the parameter annotated
    with this type.

    effect: an id of the call, under which its writes are stored only once, however often it is retried. write: lets a
    language model write a text from an instruction and a text; None without a model. asker: whose failures are counted
    together, as in a ChatRequest. recall: searches earlier turns that are not in the context; takes the arguments of
    recall_memory as JSON.
    """

    user: str
    now: datetime
    effect: UUID
    records: Records
    web: WebSearch
    write: Write | None = None
    asker: str | None = None
    recall: Callable[[str], Awaitable[ToolResult]] | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. schema: in the form of the OpenAI API; empty until its server has sent it. parse: returns the arguments
    from an object that a model wrote; raises ValidationError, Mistake. function: returns a JSON value for arguments.

    retries: after failures, not after mistakes; 0 for effects that must not happen twice. timeout_s: for all attempts
    together. writes: it changes stored data. repeatable: its changes happen only once for a Use.effect, however often
    it is called. service: the service it needs; tools of one service share a circuit breaker.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    parse: Callable[[Any], Mapping[str, Any]]
    function: Callable[[Mapping[str, Any], Use], Awaitable[Any]]
    retries: int = RETRIES
    timeout_s: float = TIMEOUT_S
    writes: bool = False
    repeatable: bool = True
    service: str = ""


class Source(Protocol):
    """A server with tools. declared: its tools as named in the team's file, without schemas."""

    @property
    def declared(self) -> Sequence[Tool]: ...

    async def tools(self) -> Sequence[Tool]:
        """Returns the tools with their schemas. May raise any exception."""
        ...

    async def close(self) -> None: ...


@overload
def tool(function: Function, /) -> Function: ...
@overload
def tool(
    *, retries: int | None = ..., timeout_s: float = ..., writes: bool = ..., service: str | None = ...
) -> Callable[[Function], Function]: ...
def tool(
    function: Any = None,
    /,
    *,
    retries: int | None = None,
    timeout_s: float = TIMEOUT_S,
    writes: bool = False,
    service: str | None = None,
) -> Any:
    """Marks a function as a tool; it stays callable as it was.

    The types give the schema, the docstring the descriptions of the tool and of its parameters (Google, NumPy and
    Sphinx styles). retries: None means 2, or 0 for a function that writes and takes no Use, because it cannot tell a
    repeated call from a new one. timeout_s: for all attempts together. service: None means a service of its own. Raises
    InvalidTool.
    """

    def marked(function: Function) -> Function:
        made = _tool(function, retries, timeout_s, writes)
        function.__tool__ = replace(made, service=service or made.service)  # type: ignore[attr-defined]
        return function

    return marked if function is None else marked(function)


def tool_of(function: Callable[..., Any]) -> Tool:
    """Returns the tool of a marked function. Raises InvalidTool."""
    marked = getattr(function, "__tool__", None)
    if not isinstance(marked, Tool):
        raise InvalidTool(f"{function!r} is not a tool; put @tool above it")
    return marked


def _tool(function: Callable[..., Any], retries: int | None, timeout_s: float, writes: bool) -> Tool:
    name = function.__name__
    docstring = inspect.getdoc(function)
    if not docstring:
        raise InvalidTool(f"{name} has no docstring, which models read as the description")
    description, described = read_docstring(docstring)
    hints, fields, wants_use = get_type_hints(function, include_extras=True), dict[str, Any](), None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidTool(f"{name}: {parameter} cannot be a parameter of a tool; name each one")
        if parameter.name not in hints:
            raise InvalidTool(f"{name}: the parameter {parameter.name} has no type")
        if hints[parameter.name] is Use:
            wants_use = parameter.name
        else:
            default = ... if parameter.default is parameter.empty else parameter.default
            about = described.get(parameter.name)
            kind = hints[parameter.name]
            fields[parameter.name] = (Annotated[kind, Field(description=about)] if about else kind, default)
    parameters = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    try:
        document = parameters_schema(parameters)
    except RecursionError:
        raise InvalidTool(f"{name}: the type of a parameter contains itself, which a schema cannot express") from None
    schema = {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": document},
    }

    def parse(written: Any) -> Mapping[str, Any]:
        read = parameters.model_validate(written)
        return {field: getattr(read, field) for field in fields}

    async def called(arguments: Mapping[str, Any], use: Use) -> Any:
        """Calls the function. One that is not async runs in a thread, which cannot be stopped."""
        kwargs = dict(arguments) if wants_use is None else {**arguments, wants_use: use}
        if inspect.iscoroutinefunction(function):
            return to_jsonable_python(await function(**kwargs))
        work = asyncio.ensure_future(asyncio.to_thread(function, **kwargs))
        try:
            return to_jsonable_python(await asyncio.shield(work))
        except asyncio.CancelledError:
            if writes and not work.done():
                LATE_WRITES[work] = (use.tenant, use.user, name)
                work.add_done_callback(LATE_WRITES.pop)
            raise

    repeatable = not writes or wants_use is not None
    tries = retries if retries is not None else RETRIES if repeatable else 0
    return Tool(name, description, schema, parse, called, tries, timeout_s, writes, repeatable, f"tool:{name}")
