"""Loads teams, which describe agents as data. A team is a folder of TOML files: `team.toml` and one for each agent."""

import re
import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from turnlog.agent.answering.run import MAX_ROUNDS
from turnlog.agent.settings import team_secret
from turnlog.agent.team.router import Rule, SimpleAnswer
from turnlog.events.contracts import MAX_DEPTH
from turnlog.events.errors import TurnlogError

TEAM_FILE = "team.toml"
BUNDLED = "advising"
DELEGATE_TOOL = "delegate_to_agent"
TYPE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
Policy = Literal["rewoo", "loop"]
Locale = Annotated[str, Field(pattern=r"^[a-z]{2}(-[A-Z]{2})?$")]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$")]
Pattern = Annotated[str, Field(min_length=1)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
F = TypeVar("F", bound=BaseModel)


class InvalidTeam(TurnlogError):
    """A team's file cannot be used; the message names the file, the key and the allowed values."""

    code = "invalid-team"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Texts(_Part):
    """Texts about an agent for people, in one language."""

    name: str = Field(min_length=1)
    description: str = ""


class Routing(_Part):
    """The rule by which questions go to an agent without a model call; see router.Rule."""

    patterns: tuple[Pattern, ...] = ()
    keywords: tuple[Pattern, ...] = ()
    confidence: float = Field(0.9, gt=0, le=1)

    @field_validator("patterns")
    @classmethod
    def _are_regular_expressions(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_regular_expression, patterns))


class Suggestion(_Part):
    """A suggestion of what to ask next. texts: by locale; `{tool.path}` in a text stands for a part of a tool's result.
    after: tools of which one must have answered; without: tools that must not have answered."""

    texts: dict[Locale, Pattern] = Field(min_length=1)
    after: tuple[ToolName, ...] = ()
    without: tuple[ToolName, ...] = ()


class Agent(_Part):
    """An agent of a team. type: its file's name. policy: "rewoo" plans all its tool calls at once, "loop" calls the
    model after each, at most `rounds` times. delegates: types of the agents it may hand a question to. model,
    temperature, max_tokens: None means the server's settings."""

    type: str
    name: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    model: str | None = Field(None, min_length=1)
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    policy: Policy = "rewoo"
    rounds: int = Field(MAX_ROUNDS, ge=1, le=20)
    enabled: bool = True
    tools: tuple[ToolName, ...] = ()
    delegates: tuple[str, ...] = ()
    texts: dict[Locale, Texts] = Field(default_factory=dict)
    routing: Routing | None = None
    suggestions: tuple[Suggestion, ...] = ()

    def may_use(self, tool: str) -> bool:
        """Returns whether the agent may call a tool. An agent with delegates may always call the delegating tool."""
        return tool in self.tools or (tool == DELEGATE_TOOL and bool(self.delegates))

    @property
    def all_tools(self) -> tuple[str, ...]:
        """Returns the names of all tools that the agent may call."""
        extra = (DELEGATE_TOOL,) if self.delegates and DELEGATE_TOOL not in self.tools else ()
        return (*self.tools, *extra)


class Simple(_Part):
    """A fixed answer; see router.SimpleAnswer."""

    pattern: Pattern
    answer: str = Field(min_length=1)

    @field_validator("pattern")
    @classmethod
    def _is_regular_expression(cls, pattern: str) -> str:
        return _regular_expression(pattern)


class _Server(_Part):
    """A server with tools. tools: their names, or a table from names for the model to the server's own names. reads,
    writes: names of tools that only read, or that write, regardless of what the server says. repeatable: tools that
    write only once per idempotency key. auth_env: the environment variable with the secret for `auth_header`. tells:
    which ids of the caller are sent with a call, by default none."""

    tools: dict[ToolName, str]
    reads: tuple[ToolName, ...] = ()
    writes: tuple[ToolName, ...] = ()
    repeatable: tuple[ToolName, ...] = ()
    tells: tuple[Literal["user", "tenant"], ...] = ()
    auth_env: Variable | None = None
    auth_header: str = Field("Authorization", pattern=r"^[A-Za-z0-9-]+$")

    @field_validator("tools", mode="before")
    @classmethod
    def _by_name(cls, tools: Any) -> Any:
        return {name: name for name in tools} if isinstance(tools, list | tuple) else tools

    @model_validator(mode="after")
    def _names_its_tools(self) -> Self:
        for name in (*self.reads, *self.writes, *self.repeatable):
            if name not in self.tools:
                raise ValueError(_not_among("one of its tools", name, self.tools))
        return self

    def writes_to(self, name: str, by_default: bool) -> bool:
        """Returns whether a tool changes something. by_default: the result if the file does not say."""
        return name in self.writes or (by_default and name not in self.reads)

    @property
    def variables(self) -> tuple[str, ...]:
        """Returns the names of the environment variables that the server needs."""
        return () if self.auth_env is None else (self.auth_env,)

    def auth_headers(self) -> dict[str, str]:
        """Returns the header with the secret, as `Bearer` in Authorization unless the secret names a scheme."""
        secret = team_secret(self.auth_env) if self.auth_env else None
        if secret is None:
            return {}
        is_bearer = self.auth_header.lower() == "authorization" and " " not in secret
        return {self.auth_header: f"Bearer {secret}" if is_bearer else secret}


class McpServer(_Server):
    """An MCP server: at a URL (streamable HTTP), or started by a command in the team's folder (stdio). env: environment
    variables that the command gets, besides PATH, HOME and the like."""

    url: str | None = Field(None, pattern=r"^https?://")
    command: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()

    @model_validator(mode="after")
    def _is_reached_in_one_way(self) -> Self:
        if (self.url is None) == (not self.command):
            raise ValueError("needs either `url` or `command`")
        return self

    @property
    def variables(self) -> tuple[str, ...]:
        return (*super().variables, *self.env)


class HttpService(_Server):
    """An HTTP service. document: its OpenAPI document, a URL or a file in the team's folder. tools: by operationId.
    base_url: None means the document's server."""

    document: str = Field(min_length=1)
    base_url: str | None = Field(None, pattern=r"^https?://")


class TeamFile(_Part):
    """The file team.toml. entry: the agent that answers if no rule is sure. depth: the maximum number of times that a
    question is handed on in one run. tools_from: Python modules whose functions marked with @tool are the team's tools.
    preferences: names that users may set besides turnlog's own. mcp, http: servers with more tools."""

    name: str = Field(min_length=1)
    entry: str
    depth: int = Field(MAX_DEPTH, ge=0, le=MAX_DEPTH)
    simple: tuple[Simple, ...] = ()
    tools_from: tuple[str, ...] = ()
    preferences: dict[str, Literal["text", "list"]] = Field(default_factory=dict)
    mcp: dict[str, McpServer] = Field(default_factory=dict)
    http: dict[str, HttpService] = Field(default_factory=dict)


class Team(TeamFile):
    """A team with its agents by type."""

    agents: dict[str, Agent]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Returns the routing rules of the enabled agents, in the order of their types."""
        return tuple(
            Rule(agent.type, rule.patterns, rule.keywords, rule.confidence)
            for agent in self.agents.values()
            if agent.enabled and (rule := agent.routing) is not None
        )

    @property
    def simple_answers(self) -> tuple[SimpleAnswer, ...]:
        return tuple(SimpleAnswer(known.pattern, known.answer) for known in self.simple)


@cache
def bundled_team() -> Team:
    """Returns the bundled team: five agents that advise applicants to universities."""
    return load_team(files("turnlog.agent.team") / BUNDLED)


def load_team(folder: Traversable) -> Team:
    """Returns the team in a folder; only *.toml files are read. Raises InvalidTeam."""
    if not folder.is_dir():
        raise InvalidTeam(f"{folder}: there is no such folder; a team is a folder with {TEAM_FILE} and its agents")
    entries = {entry.name: entry for entry in folder.iterdir() if entry.name.endswith(".toml")}
    if TEAM_FILE not in entries:
        raise InvalidTeam(f"{folder}: there is no {TEAM_FILE}, which names the team and its `entry`")
    team = _parsed(TeamFile, _document(entries.pop(TEAM_FILE)), TEAM_FILE)
    agents = {agent.type: agent for name in sorted(entries) for agent in [_agent(entries[name])]}
    if team.entry not in agents:
        raise InvalidTeam(f"{TEAM_FILE}: entry: {_not_among('an agent', team.entry, agents)}")
    for agent in agents.values():
        for delegate in agent.delegates:
            if delegate not in agents or delegate == agent.type:
                others = agents.keys() - {agent.type}
                raise InvalidTeam(f"{agent.type}.toml: delegates: {_not_among('another agent', delegate, others)}")
    return Team(**team.model_dump(), agents=agents)


def check_tools(team: Team, known: Collection[str]) -> None:
    """Raises InvalidTeam if an agent or one of its suggestions lists a tool that does not exist."""
    for agent in team.agents.values():
        listed = [("tools", tool) for tool in agent.tools]
        listed += [("suggestions", tool) for rule in agent.suggestions for tool in (*rule.after, *rule.without)]
        for key, tool in listed:
            if tool not in known:
                raise InvalidTeam(f"{agent.type}.toml: {key}: {_not_among('a tool', tool, known)}")


def _agent(entry: Traversable) -> Agent:
    type_ = entry.name.removesuffix(".toml")
    if not TYPE.fullmatch(type_):
        raise InvalidTeam(f"{entry.name}: an agent's file is named with a-z, 0-9, _ and -, a letter first")
    document = _document(entry)
    if "type" in document:
        raise InvalidTeam(f"{entry.name}: type: is not a key; the file's name is the agent's type")
    return _parsed(Agent, {**document, "type": type_}, entry.name)


def _document(entry: Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(entry.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidTeam(f"{entry.name}: is not TOML: {error}") from None


def _parsed(kind: type[F], document: Mapping[str, Any], file: str) -> F:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise InvalidTeam(f"{file}: {_said(kind, error.errors()[0])}") from None


def _said(kind: type[BaseModel], problem: ErrorDetails) -> str:
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"{key}: is missing"
    if problem["type"] == "extra_forbidden":
        keys = f"; the keys are {', '.join(sorted(kind.model_fields.keys() - {'type'}))}" if "." not in key else ""
        return f"{key}: there is no such key{keys}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{key}: {message}, not {problem['input']!r:.80}"


def _not_among(what: str, name: str, known: Collection[str]) -> str:
    return f"{name!r} is not the name of {what}; there are {', '.join(sorted(known)) or 'none'}"


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"should be a regular expression ({error})") from None
    return pattern
