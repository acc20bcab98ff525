"""Makes tools of typed Python functions, which a model may call. The docstring is the tool's description, and the
parameters give its schema.
"""

import asyncio
import copy
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints, overload
from uuid import UUID

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_jsonable_python

from turnlog.agent import metrics
from turnlog.agent.answering.fallback import Category
from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.models.calls import Breaker
from turnlog.agent.models.errors import BreakerOpen, ModelError
from turnlog.agent.team.function_schemas import parameters_schema, read_docstring
from turnlog.agent.team.plans import Result, bounded
from turnlog.agent.team.teams import DELEGATE_TOOL, Agent
from turnlog.agent.team.tool_failures import Mistake as Mistake
from turnlog.agent.team.tool_failures import Unavailable, category_of_failure
from turnlog.agent.team.web_search import WebSearch
from turnlog.events.errors import TurnlogError

TIMEOUT_S, RETRIES, FIRST_WAIT_S = 30.0, 2, 0.5
CONNECT_S, ASK_AGAIN_S = 10.0, 30.0
MOST_MISTAKES = 5  # of one call, in the result that the model reads
MAY_BE_DONE = "so it may have been done: do not call it again before you have looked"
logger = logging.getLogger(__name__)
_LATE = dict[
    asyncio.Future[Any], tuple[str, str, str]
]()  # writes that were given up but are still running: tenant, user, tool
T = TypeVar("T")
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


class Registry:
    """Tools by name. Every call gets a result, whatever the model wrote; nothing is raised."""

    def __init__(
        self,
        tools: Iterable[Tool],
        sources: Sequence[Source] = (),
        *,
        connect_s: float = CONNECT_S,
        ask_again_s: float = ASK_AGAIN_S,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        """Offers these tools and those of `sources`, which are servers with more tools. Raises InvalidTool if two tools
        have the same name.

        away: {names of a server's tools, joined with commas: why they are not offered}. connect_s, ask_again_s: see
        `ready`. first_wait_s: the pause before the first retry of a call; each later pause is twice as long.
        """
        self._connect_s, self._ask_again_s, self._first_wait_s = connect_s, ask_again_s, first_wait_s
        self._tools, self._asked, self.away = dict[str, Tool](), dict[int, float](), dict[str, str]()
        self._sources, self._asking, self._tasks = sources, asyncio.Lock(), set[asyncio.Task[None]]()
        for known in (*tools, *(known for source in sources for known in source.declared)):
            if known.name in self._tools:
                raise InvalidTool(f"there are two tools {known.name!r}")
            self._tools[known.name] = known
        self.breakers = {
            service: Breaker(f"The service {service!r}")
            for service in sorted({known.service for known in self._tools.values()})
        }
        for service, breaker in self.breakers.items():
            metrics.watch(service, breaker)

    async def ready(self) -> None:
        """Fetches the schemas of the servers' tools, once. A server that does not answer within connect_s is asked
        again after ask_again_s, while answers continue; until then its tools are not offered."""
        async with self._asking:
            now, new = asyncio.get_running_loop().time(), list[asyncio.Task[None]]()
            for at in range(len(self._sources)):
                if self._asked.get(at, 0.0) <= now:
                    task = asyncio.create_task(self._learn(at))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    new += [] if at in self._asked else [task]
                    self._asked[at] = float("inf")
            if new:
                await asyncio.wait(new)

    async def close(self) -> None:
        """Ends the connections to servers."""
        for task in self._tasks:
            task.cancel()
        for source in self._sources:
            await source.close()

    async def _learn(self, at: int) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                learned = await self._sources[at].tools()
        except Exception as error:  # a foreign server may raise anything
            names = ", ".join(known.name for known in self._sources[at].declared)
            self.away[names] = str(error) or type(error).__name__
            logger.warning("the tools %s cannot be offered: %s", names, self.away[names])
            self._asked[at] = asyncio.get_running_loop().time() + self._ask_again_s
            return
        self.away.pop(", ".join(known.name for known in learned), None)
        self._tools |= {known.name: known for known in learned}

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    def schemas(self, agent: Agent) -> list[dict[str, Any]]:
        """Returns the agent's available tools in the form of the OpenAI API; the delegating tool lists the agents that
        this one may hand over to."""
        known = [self._tools[name] for name in agent.all_tools if name in self._tools and self._tools[name].schema]
        return [_delegating_to(agent) if tool.name == DELEGATE_TOOL else dict(tool.schema) for tool in known]

    async def call(self, agent: Agent, name: str, arguments: str | Mapping[str, Any], use: Use) -> Result:
        """Calls a tool for an agent, and returns the result. arguments: JSON text as a model wrote it, or an object.

        If the agent may not use the tool, arguments do not fit, the tool fails or takes too long, or its service's
        breaker is open, the result says so. The time limit and the breaker apply to all attempts together.
        """
        known = self._tools.get(name)
        if known is None or not agent.may_use(name):
            allowed = ", ".join(agent.all_tools) or "none"
            return _failed(f"{agent.type} has no tool {name!r}; its tools are {allowed}")
        late = [tool for tenant, user, tool in _LATE.values() if (tenant, user) == (use.tenant, use.user)]
        if known.writes and late:
            return _failed(f"{name} was not called: an earlier call of {late[0]} has not ended yet, {MAY_BE_DONE}")
        try:
            parsed = known.parse(_object(arguments))
        except Mistake as mistake:
            return _failed(str(mistake))
        except ValidationError as error:
            return _failed(_mistakes(error))
        except ValueError as error:
            return _failed(f"the arguments are not JSON: {error}")
        try:
            return Result(bounded(await self._guarded(known, parsed, use)))
        except Mistake as mistake:
            return _failed(str(mistake))
        except BreakerOpen as error:
            return _failed(f"{name} was not called: {error}", "circuit_open")
        except TimeoutError:
            return _failed(f"{name} did not answer within {known.timeout_s:g} s", "timeout", known.writes)
        except Unavailable as error:
            return _failed(f"{name} failed: {error}", error.category, known.writes and error.may_be_done)
        except ModelError as error:  # the tool asked a model for a text before it changed anything
            return _failed(f"{name} failed ({type(error).__name__})", category_of_failure(error))
        except Exception as error:  # a tool may be anybody's code and raise anything
            logger.warning("the tool %s failed", name, exc_info=error)
            return _failed(f"{name} failed ({type(error).__name__})", category_of_failure(error), known.writes)

    async def _guarded(self, known: Tool, arguments: Mapping[str, Any], use: Use) -> Any:
        """Calls the tool. Raises BreakerOpen, without a call, while the circuit breaker of its service is open, and the
        errors of the tool.
        """
        breaker = self.breakers[known.service]
        breaker.admit(use.asker)
        try:
            async with asyncio.timeout(known.timeout_s):
                value = await _tried(known, arguments, use, self._first_wait_s)
        except (Mistake, PydanticSerializationError):
            breaker.succeeded(use.asker)  # the service answered
            raise
        except ModelError:
            breaker.released()  # the model has its own breaker
            raise
        except Exception:
            breaker.failed(use.asker)
            raise
        except BaseException:
            breaker.released()  # the run ended in the meantime
            raise
        breaker.succeeded(use.asker)
        return value


def registry_of(
    functions: Iterable[Callable[..., Any]], sources: Sequence[Source] = (), others: Sequence[Tool] = ()
) -> Registry:
    """Returns a registry of functions that are marked as tools, of the delegating tool and of other tools. sources:
    servers with more tools. Raises InvalidTool."""
    return Registry((*map(tool_of, (delegate_to_agent, *functions)), *others), sources)


async def _tried(known: Tool, arguments: Mapping[str, Any], use: Use, first_wait_s: float) -> Any:
    for attempt in range(known.retries):
        try:
            return await known.function(arguments, use)
        except (Mistake, PydanticSerializationError, ModelError):  # a model's client has already retried by itself
            raise
        except Exception as error:
            logger.info("the tool %s failed and is tried again", known.name, exc_info=error)
            await asyncio.sleep(first_wait_s * 2**attempt)
    return await known.function(arguments, use)


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
                _LATE[work] = (use.tenant, use.user, name)
                work.add_done_callback(_LATE.pop)
            raise

    repeatable = not writes or wants_use is not None
    tries = retries if retries is not None else RETRIES if repeatable else 0
    return Tool(name, description, schema, parse, called, tries, timeout_s, writes, repeatable, f"tool:{name}")


def _object(arguments: str | Mapping[str, Any]) -> Any:
    """Returns the JSON object of a text. Raises ValueError for text that is not JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except RecursionError:
        raise ValueError("they are nested too deep") from None


def _mistakes(error: ValidationError) -> str:
    mistakes = [
        f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg'].lower()}"
        for problem in error.errors()[:MOST_MISTAKES]
    ]
    return f"the arguments do not fit: {'; '.join(mistakes)}"


def _failed(why: str, category: Category | None = None, may_be_done: bool = False) -> Result:
    why = f"{why}, {MAY_BE_DONE}" if may_be_done else why
    return Result({"error": why} | ({"category": category} if category else {}), is_error=True)


@tool
def delegate_to_agent(
    agent_type: Annotated[str, Field(description="the agent to hand over to")],
    task_description: Annotated[str, Field(min_length=1, description="what it is to do")],
    context: Annotated[dict[str, Any] | None, Field(description="what else it should know")] = None,
) -> None:
    """Hands the question to another agent, which answers it."""
    raise Mistake("hand a question over in a call of its own, with an agent and a task")


def _delegating_to(agent: Agent) -> dict[str, Any]:
    schema = copy.deepcopy(dict(tool_of(delegate_to_agent).schema))
    schema["function"]["parameters"]["properties"]["agent_type"]["enum"] = list(agent.delegates)
    return schema
