"""The commands `agents`: list, show, change and switch the agents that answer, with their prompts and tools."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from turnlog.agent.team import agents as agents_of_tenant
from turnlog.consumers.cli.console import BadOption, Result
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command, listed
from turnlog.consumers.cli.text_tables import table

if TYPE_CHECKING:
    from turnlog.projectors.models.operations.agents import AgentRow

app = commands()
below = group(app, "agents", "List, configure or switch agents.")
Type = Annotated[str, typer.Argument(help="The agent's type, such as essay.")]
SHOWN_CHARS = 400


@listed(below)
async def list_(rt: Runtime) -> Result:
    """List the agents of the tenant with the values in use."""
    return table(await agents_of_tenant.list_agents(rt, rt.settings.tenant), _COLUMNS)


@command(below, projecting=False)
async def show(rt: Runtime, type: Type) -> Result:
    """Show an agent: prompt, model, tools, and whom it hands questions to."""
    return _shown(await agents_of_tenant.get_agent(rt, rt.settings.tenant, type))


@command(below, "set")
async def change(
    rt: Runtime,
    type: Type,
    prompt: Annotated[str | None, typer.Option(help="The system prompt, or @FILE to read it from a file.")] = None,
    name: Annotated[str | None, typer.Option(help="The name that people see.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that it uses.")] = None,
    temperature: Annotated[float | None, typer.Option(help="The model's temperature, 0 to 2.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum tokens of an answer.")] = None,
    tools: Annotated[str | None, typer.Option(help="Tools that it may call, separated by commas; '' for none.")] = None,
    delegates: Annotated[
        str | None,
        typer.Option(help="Types of agents that it may hand a question to, separated by commas; '' for none."),
    ] = None,
) -> Result:
    """Change an agent, or create one. Values that are not given stay. The change applies from the next answer on."""
    values: dict[str, Any] = {
        "system_prompt": None if prompt is None else _text(prompt),
        "name": name,
        "model": model,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "tools": None if tools is None else _names(tools),
        "delegates": None if delegates is None else _names(delegates),
    }
    changes: Any = {field: value for field, value in values.items() if value is not None}
    if not changes:
        raise BadOption("give what to change, such as --temperature 0.2; --help lists the options")
    return _shown(await agents_of_tenant.change_agent(rt, rt.settings.tenant, type, changes))


@command(below)
async def on(rt: Runtime, type: Type) -> Result:
    """Switch an agent on."""
    return _shown(await agents_of_tenant.switch_agent(rt, rt.settings.tenant, type, True))


@command(below)
async def off(rt: Runtime, type: Type) -> Result:
    """Switch an agent off: requests that name it are refused, and no question is routed or handed to it."""
    return _shown(await agents_of_tenant.switch_agent(rt, rt.settings.tenant, type, False))


def _text(prompt: str) -> str:
    if not prompt.startswith("@"):
        return prompt
    try:
        return Path(prompt[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{prompt[1:]} cannot be read: {error}") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


_COLUMNS: dict[str, Callable[["AgentRow"], Any]] = {
    "TYPE": lambda agent: agent.type,
    "STATE": lambda agent: "on" if agent.enabled else "off",
    "MODEL": lambda agent: agent.model,
    "TOOLS": lambda agent: len(agent.tools or ()),
    "NAME": lambda agent: agent.name,
}


def _shown(agent: "AgentRow") -> Result:
    return Result(agent, _lines(agent))


def _lines(agent: "AgentRow") -> Iterator[str | Text]:
    yield from table([agent], _COLUMNS).lines
    yield f"tools      {', '.join(agent.tools or ()) or 'none'}"
    yield f"delegates  {', '.join(agent.delegates or ()) or 'none'}"
    if agent.temperature is not None:
        yield f"temperature  {agent.temperature:g}"
    if agent.max_tokens is not None:
        yield f"max tokens  {agent.max_tokens:,}"
    prompt = agent.system_prompt or ""
    yield prompt if len(prompt) <= SHOWN_CHARS else f"{prompt[:SHOWN_CHARS]}… (--json has all of it)"
