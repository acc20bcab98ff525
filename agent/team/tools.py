"""Tools: typed Python functions that a model may call. The docstring describes one, its parameters are the schema."""

import asyncio
import copy
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints, overload
from uuid import UUID

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_jsonable_python

from turnlog.agent import metrics
from turnlog.agent.answering.fallback import Category, category_of
from turnlog.agent.models.calls import Breaker
from turnlog.agent.models.errors import BreakerOpen, ModelError
from turnlog.agent.team.plans import Result
from turnlog.agent.team.teams import DELEGATE_TOOL, Agent
from turnlog.events.errors import TurnlogError

TIMEOUT_S, RETRIES, FIRST_WAIT_S = 30.0, 2, 0.5
MOST_MISTAKES = 5  # of one call, in the result that the model reads
logger = logging.getLogger(__name__)
T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
Write = Callable[[str, str], Awaitable[str]]


class Mistake(Exception):
    """A call cannot be answered as it is; the message tells the model what to do otherwise. It is not tried again."""


class InvalidTool(TurnlogError):
    """A function cannot be a tool; raised where it is defined."""

    code = "invalid-tool"


class Records(Protocol):
    """A user's own documents by kind and key, which tools read and write."""

    async def get(self, kind: str, key: str) -> dict[str, Any] | None: ...

    async def all(self, kind: str) -> dict[str, dict[str, Any]]: ...

    async def put(self, kind: str, key: str, value: Mapping[str, Any], effect: UUID) -> None:
        """effect: two puts with the same one are stored once."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the web that a search found."""

    title: str
    url: str
    text: str


class WebSearch(Protocol):
    """about: what is searched, such as "sample pages", which the model is told."""

    @property
    def about(self) -> str: ...

    async def search(self, query: str, site: str | None, limit: int) -> list[Page]:
        """site: only pages of this school. Best first."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """Who uses a tool, when and for what. A function gets it as the parameter that is annotated with this type.

    effect: an id of the call; what the call writes is stored once under it, however often it is tried. write: a text
    by a language model from an instruction and a text; None where there is no model. asker: whose failures count
    together, as of a ChatRequest.
    """

    user: str
    now: datetime
    effect: UUID
    records: Records
    web: WebSearch
    write: Write | None = None
    asker: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. schema: as the OpenAI API takes it. retries: after failures, not after mistakes; 0 for what must not
    happen twice. timeout_s: of all tries together. writes: it changes what is stored. service: what it needs, such as a
    provider that other tools need too; they share a circuit breaker."""

    name: str
    description: str
    schema: Mapping[str, Any]
    parameters: type[BaseModel]
    function: Callable[..., Any]
    wants_use: str | None
    retries: int = RETRIES
    timeout_s: float = TIMEOUT_S
    writes: bool = False
    service: str = ""

    async def run(self, arguments: BaseModel, use: Use) -> Any:
        """Returns what the function returns, as a JSON value. A function that is not async runs in a thread."""
        given = {name: getattr(arguments, name) for name in type(arguments).model_fields}
        if self.wants_use is not None:
            given[self.wants_use] = use
        if inspect.iscoroutinefunction(self.function):
            value = await self.function(**given)
        else:
            value = await asyncio.to_thread(self.function, **given)
        return to_jsonable_python(value)


@overload
def tool(function: Function, /) -> Function: ...
@overload
def tool(
    *, retries: int = ..., timeout_s: float = ..., writes: bool = ..., service: str | None = ...
) -> Callable[[Function], Function]: ...
def tool(
    function: Any = None,
    /,
    *,
    retries: int = RETRIES,
    timeout_s: float = TIMEOUT_S,
    writes: bool = False,
    service: str | None = None,
) -> Any:
    """Marks a function as a tool; it stays callable as it was. service: None is a service of its own. Raises
    InvalidTool."""

    def marked(function: Function) -> Function:
        made = _tool(function, retries, timeout_s, writes)
        function.__tool__ = replace(made, service=service or made.service)  # type: ignore[attr-defined]
        return function

    return marked if function is None else marked(function)


def tool_of(function: Callable[..., Any]) -> Tool:
    """Returns the tool of a function that is marked as one. Raises InvalidTool."""
    marked = getattr(function, "__tool__", None)
    if not isinstance(marked, Tool):
        raise InvalidTool(f"{function!r} is no tool; put @tool above it")
    return marked


class Registry:
    """Tools by name. A call is answered with a result whatever the model wrote; nothing is raised."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Raises InvalidTool where two tools have one name."""
        self._tools = dict[str, Tool]()
        for known in tools:
            if known.name in self._tools:
                raise InvalidTool(f"there are two tools {known.name!r}")
            self._tools[known.name] = known
        self.breakers = {
            service: Breaker(f"The service {service!r}")
            for service in sorted({known.service for known in self._tools.values()})
        }
        for service, breaker in self.breakers.items():
            metrics.watch(service, breaker)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    def schemas(self, agent: Agent) -> list[dict[str, Any]]:
        """Returns the agent's tools that there are, as the OpenAI API takes them; the one that delegates names the
        agents that this one may hand over to."""
        known = [self._tools[name] for name in agent.all_tools if name in self._tools]
        return [_delegating_to(agent) if tool.name == DELEGATE_TOOL else dict(tool.schema) for tool in known]

    async def call(self, agent: Agent, name: str, arguments: str | Mapping[str, Any], use: Use) -> Result:
        """Returns the result of an agent's call. arguments: JSON text as a model wrote it, or an object.

        A tool that the agent may not use, arguments that do not fit, a tool that fails or takes too long, a service
        whose breaker is open: each is a result that says so. The time limit is around the breaker around the tries.
        """
        known = self._tools.get(name)
        if known is None or not agent.may_use(name):
            allowed = ", ".join(agent.all_tools) or "none"
            return _failed(f"{agent.type} has no tool {name!r}; its tools are {allowed}")
        try:
            parsed = _arguments(known.parameters, arguments)
        except ValidationError as error:
            return _failed(_mistakes(error))
        except ValueError as error:
            return _failed(f"the arguments are not JSON: {error}")
        try:
            return Result(await self._guarded(known, parsed, use))
        except Mistake as mistake:
            return _failed(str(mistake))
        except BreakerOpen as error:
            return _failed(f"{name} was not called: {error}", "circuit_open")
        except TimeoutError:
            return _failed(f"{name} did not answer within {known.timeout_s:g} s", "timeout")
        except Exception as error:  # a tool may be anybody's code
            logger.warning("the tool %s failed", name, exc_info=error)
            return _failed(f"{name} failed ({type(error).__name__})", category_of_failure(error))

    async def _guarded(self, known: Tool, arguments: BaseModel, use: Use) -> Any:
        """Raises BreakerOpen without a call while the tool's service is left alone, and what the tool raises."""
        breaker = self.breakers[known.service]
        breaker.admit(use.asker)
        try:
            async with asyncio.timeout(known.timeout_s):
                value = await _tried(known, arguments, use)
        except (Mistake, PydanticSerializationError):
            breaker.succeeded(use.asker)  # the service answered
            raise
        except ModelError:
            breaker.released()  # the model has a breaker of its own
            raise
        except Exception:
            breaker.failed(use.asker)
            raise
        except BaseException:
            breaker.released()  # the run ended meanwhile
            raise
        breaker.succeeded(use.asker)
        return value


def registry_of(functions: Iterable[Callable[..., Any]]) -> Registry:
    """Returns a registry of functions that are marked as tools, with the tool that delegates. Raises InvalidTool."""
    return Registry(map(tool_of, (delegate_to_agent, *functions)))


async def _tried(known: Tool, arguments: BaseModel, use: Use) -> Any:
    for attempt in range(known.retries):
        try:
            return await known.run(arguments, use)
        except (Mistake, PydanticSerializationError, ModelError):  # a model's client has tried again itself
            raise
        except Exception as error:
            logger.info("the tool %s failed and is tried again", known.name, exc_info=error)
            await asyncio.sleep(FIRST_WAIT_S * 2**attempt)
    return await known.run(arguments, use)


def _tool(function: Callable[..., Any], retries: int, timeout_s: float, writes: bool) -> Tool:
    name = function.__name__
    description = inspect.getdoc(function)
    if not description:
        raise InvalidTool(f"{name} has no docstring, which is the description that a model reads")
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
            fields[parameter.name] = (hints[parameter.name], default)
    parameters = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    description = " ".join(description.split())
    schema = _schema(name, description, parameters)
    return Tool(name, description, schema, parameters, function, wants_use, retries, timeout_s, writes, f"tool:{name}")


def _schema(name: str, description: str, parameters: type[BaseModel]) -> dict[str, Any]:
    """Raises InvalidTool."""
    document = parameters.model_json_schema()
    parts = document.pop("$defs", {})
    try:
        slim = _slim(_with_parts(document, parts))
    except RecursionError:
        raise InvalidTool(f"{name}: the type of a parameter contains itself; a schema cannot say that") from None
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": {"properties": {}, **slim}},
    }


def _arguments(parameters: type[BaseModel], arguments: str | Mapping[str, Any]) -> BaseModel:
    """Raises ValidationError, ValueError for text that is not JSON."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except RecursionError:
            raise ValueError("they are nested too deep") from None
    return parameters.model_validate(arguments)


def _mistakes(error: ValidationError) -> str:
    mistakes = [
        f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg'].lower()}"
        for problem in error.errors()[:MOST_MISTAKES]
    ]
    return f"the arguments do not fit: {'; '.join(mistakes)}"


def category_of_failure(error: Exception) -> Category:
    """Returns the kind of a tool's failure, as answers that failed have it."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, TurnlogError):
        return category_of(error.code)
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "timeout"
    if status in _CATEGORY_OF_STATUS:
        return _CATEGORY_OF_STATUS[status]
    return "network" if status is not None or isinstance(error, OSError | httpx2.TransportError) else "unknown"


_CATEGORY_OF_STATUS: Mapping[int | None, Category] = {402: "quota", 429: "rate_limit", 503: "network", 504: "timeout"}


def _failed(why: str, category: Category | None = None) -> Result:
    return Result({"error": why} | ({"category": category} if category else {}), is_error=True)


def _with_parts(schema: Any, parts: Mapping[str, Any]) -> Any:
    """The schema with its parts in place of references to them, which some servers cannot read."""
    if isinstance(schema, list):
        return [_with_parts(part, parts) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _with_parts({**parts[schema["$ref"].removeprefix("#/$defs/")], **rest}, parts)
    return {key: _with_parts(value, parts) for key, value in schema.items()}


def _slim(schema: Any) -> Any:
    """The schema without titles, and with the plain type where a parameter may also be left out."""
    if isinstance(schema, list):
        return [_slim(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema and len(others := [kind for kind in schema["anyOf"] if kind != {"type": "null"}]) == 1:
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default", "title")}
        return _slim({**others[0], **rest})
    slim = {key: _slim(value) for key, value in schema.items() if key not in ("title", "properties")}
    if "properties" in schema:  # a parameter may be called title
        slim["properties"] = {name: _slim(value) for name, value in schema["properties"].items()}
    return slim


@tool
def delegate_to_agent(
    agent_type: Annotated[str, Field(description="the agent to hand over to")],
    task_description: Annotated[str, Field(min_length=1, description="what it is to do")],
    context: Annotated[dict[str, Any] | None, Field(description="what else it should know")] = None,
) -> None:
    """Hands the question to another agent, which answers it."""
    raise Mistake("a question is handed over alone, with an agent and a task")


def _delegating_to(agent: Agent) -> dict[str, Any]:
    schema = copy.deepcopy(dict(tool_of(delegate_to_agent).schema))
    schema["function"]["parameters"]["properties"]["agent_type"]["enum"] = list(agent.delegates)
    return schema
