"""Loads the team of a server: its agents with a tenant's changes, its tools, and the web search that the tools use."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from turnlog.agent import metrics
from turnlog.agent.answering.recall_tool import SCHEMA
from turnlog.agent.answering.single_agent import DEFAULT_AGENT, AgentDisabled
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import team_secret
from turnlog.agent.team.http_tools import HttpTools
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.mcp_tools import McpTools
from turnlog.agent.team.router import route
from turnlog.agent.team.searxng import SearXNG
from turnlog.agent.team.teams import BUNDLED, Agent, InvalidTeam, Team, bundled_team, check_tools, load_team
from turnlog.agent.team.tool_registry import Registry, registry_of
from turnlog.agent.team.tools import Mistake, Source, Tool, Use
from turnlog.agent.team.web_search import WebSearch
from turnlog.events.errors import NotFound
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.speech import RECALL_TOOL
from turnlog.projectors.models.operations.agents import AgentRow, agents_of

RoutedBy = Literal["router", "request", "agent"]


@dataclass(frozen=True, slots=True)
class ServerTeam:
    """A team with the tools that its files name. web: the web search that its tools use."""

    team: Team
    tools: Registry
    web: WebSearch


@dataclass(frozen=True, slots=True)
class Chosen:
    """The agent chosen for a question. by: "request" if the request names it, "router" if rules chose it, "agent" if
    the entry agent decides. answer: the fixed answer of a rule; None if the agent answers."""

    agent: Agent
    by: RoutedBy
    answer: str | None = None


def _named(arguments: Any) -> Mapping[str, Any]:
    if not isinstance(arguments, Mapping):
        raise Mistake("the arguments should be an object")
    return arguments


async def _recalled(arguments: Mapping[str, Any], use: Use) -> Any:
    if use.recall is None:
        raise Mistake("there is no conversation to recall from")
    result = await use.recall(json.dumps(dict(arguments)))
    value = json.loads(result.text)
    if result.is_error:
        raise Mistake(value["error"])
    return value


RECALL = Tool(RECALL_TOOL, SCHEMA["function"]["description"], SCHEMA, _named, _recalled, service=f"tool:{RECALL_TOOL}")


def check_secrets(team: Team) -> None:
    """Raises InvalidTeam if an environment variable that a server of tools needs is not set."""
    for kind, servers in (("mcp", team.mcp), ("http", team.http)):
        for name, server in servers.items():
            for variable in server.variables:
                if team_secret(variable) is None:
                    raise InvalidTeam(f"team.toml: {kind}.{name}: the environment variable {variable} is not set")


def server_team(runtime: Runtime) -> ServerTeam | None:
    """Returns the team that TURNLOG_TEAM names; None if it names none. Raises InvalidTeam."""
    return runtime.cached(_loaded)


def team_preferences(runtime: Runtime) -> Mapping[str, str]:
    """Returns the names of preferences that the team adds, each with "text" or "list". Raises InvalidTeam."""
    server = server_team(runtime)
    return {} if server is None else server.team.preferences


def entry_agent(runtime: Runtime) -> str:
    """Returns the type of the agent for questions that name no agent. Raises InvalidTeam."""
    server = server_team(runtime)
    return DEFAULT_AGENT if server is None else server.team.entry


def _loaded(runtime: Runtime) -> ServerTeam | None:
    named, searxng = runtime.settings.team, runtime.settings.searxng_url
    if named is None:
        return None
    team = bundled_team() if named == BUNDLED else load_team(Path(named))
    modules = [_module(name) for name in team.tools_from]
    folder = str(Path(named).absolute())
    sources: list[Source] = [
        *(McpTools(name, server, folder) for name, server in team.mcp.items()),
        *(HttpTools(name, service, folder) for name, service in team.http.items()),
    ]
    functions = dict.fromkeys(
        function for module in modules for function in _marked(module)
    )  # one module may import another's tools
    tools = registry_of(functions, sources, [RECALL])
    runtime.on_close(tools.close)
    check_tools(team, tools.names)
    metrics.name_agents(team.agents)
    pages: list[Callable[[], WebSearch]] = [
        module.sample_pages for module in modules if hasattr(module, "sample_pages")
    ]
    local = pages[0]() if pages else LocalPages("nothing: no web search is configured", [])
    return ServerTeam(team, tools, SearXNG(searxng) if searxng else local)


async def team_of_tenant(
    conn: Connection, server: ServerTeam, tenant: str, default_model: str | None = None
) -> ServerTeam:
    """Returns the team with the tenant's values for its agents, and with agents that the tenant has created.

    default_model: the model that a request asks for. It applies to agents for which neither a file nor the tenant names
    one.
    """
    rows = await agents_of(conn, tenant)
    if not rows and default_model is None:
        return server
    agents = dict(server.team.agents)
    for row in rows:
        agents[row.type] = _changed(agents.get(row.type), row)
    for type_, agent in agents.items():
        agents[type_] = agent.model_copy(update={"model": agent.model or default_model})
    return ServerTeam(server.team.model_copy(update={"agents": agents}), server.tools, server.web)


def choose(team: Team, question: str, wanted: str | None) -> Chosen:
    """Returns the choice of an agent: the one that the request names, else the one that the rules are sure of, else the
    team's entry agent.

    Raises NotFound for an unknown agent, AgentDisabled.
    """
    if wanted is not None:
        if wanted not in team.agents:
            raise NotFound(f"there is no agent {wanted[:80]!r}; there are {', '.join(team.agents)}")
        return Chosen(_on(team.agents[wanted]), "request")
    routing = route(question, team.rules, team.simple_answers)
    if routing.answer is not None:
        return Chosen(_on(team.agents[team.entry]), "router", routing.answer)
    if not routing.should_use_llm and routing.agent is not None:
        return Chosen(_on(team.agents[routing.agent]), "router")
    return Chosen(_on(team.agents[team.entry]), "agent")


def _on(agent: Agent) -> Agent:
    if not agent.enabled:
        raise AgentDisabled(f"the agent {agent.type!r} is switched off; an administrator can switch it on")
    return agent


def _changed(known: Agent | None, row: AgentRow) -> Agent:
    set_ = {
        "prompt": row.system_prompt,
        "temperature": row.temperature,
        "max_tokens": row.max_tokens,
        "model": row.model,
        "name": row.name,
        "tools": None if row.tools is None else tuple(row.tools),
        "delegates": None if row.delegates is None else tuple(row.delegates),
    }
    changes: dict[str, Any] = {name: value for name, value in set_.items() if value is not None}
    base = known or Agent(type=row.type, name=row.type, prompt="You are a helpful assistant.")
    return base.model_copy(update={**changes, "enabled": row.enabled})


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidTeam(f"team.toml: tools_from: {name!r} cannot be imported: {error}") from None


def _marked(module: Any) -> Sequence[Callable[..., Any]]:
    """Returns the functions of a module that are tools: those in TOOLS, else all that are marked."""
    marked = [member for member in vars(module).values() if callable(member) and hasattr(member, "__tool__")]
    return list(getattr(module, "TOOLS", marked))
