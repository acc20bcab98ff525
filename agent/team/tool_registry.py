"""Calls the tools that an agent may use: validates the arguments, limits the time, and retries."""

import asyncio
import copy
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import PydanticSerializationError

from turnlog.agent import metrics
from turnlog.agent.answering.fallback import Category
from turnlog.agent.models.calls import Breaker
from turnlog.agent.models.errors import BreakerOpen, ModelError
from turnlog.agent.team.plans import Result, bounded
from turnlog.agent.team.teams import DELEGATE_TOOL, Agent
from turnlog.agent.team.tool_failures import Mistake as Mistake
from turnlog.agent.team.tool_failures import Unavailable, category_of_failure
from turnlog.agent.team.tools import LATE_WRITES, InvalidTool, Source, Tool, Use, tool, tool_of

FIRST_WAIT_S = 0.5
CONNECT_S, ASK_AGAIN_S = 10.0, 30.0
MOST_MISTAKES = 5  # of one call, in the result that the model reads
MAY_BE_DONE = "so it may have been done: do not call it again before you have looked"
logger = logging.getLogger(__name__)


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
        late = [tool for tenant, user, tool in LATE_WRITES.values() if (tenant, user) == (use.tenant, use.user)]
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
