"""The commands `rederive run|list|diff|promote|drop`: what other rules, another prompt or model would remember."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from turnlog.agent.counting import counted
from turnlog.agent.memory import rederiving
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import Result, rows
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import Runtime, command

if TYPE_CHECKING:
    from turnlog.projectors.models.memories.lookup import StoredMemory

Name = Annotated[str, typer.Argument(help="Name of the trial: letters, digits, '_' and '-'.")]

app = commands()
below = group(app, "rederive", "Try other rules, another prompt or model, beside the stored memories.")


@command(below, "run")
async def derived(
    rt: Runtime,
    name: Name,
    user: Annotated[list[str] | None, typer.Option(help="Only this user; may be repeated. Default: all users.")] = None,
    rules: Annotated[Path | None, typer.Option(help="Rules to use instead of MEMORY_RULES_FILE.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to use instead of TURNLOG_MODEL.")] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="Prompt to use instead of MEMORY_EXTRACT_PROMPT_FILE or the built-in one.")
    ] = None,
) -> Result:
    """Derive memories from all turns as a trial; stored memories do not change. The same name again continues where it
    stopped.
    """
    other = rederiving.OtherExtractor(rules, model, prompt)
    with progress("extracting") as update:
        await rederiving.derive(rt, rt.settings.tenant, name, user or (), update, other)
    return rows(await rederiving.compare(rt, rt.settings.tenant, name), _lines, document=_document)


@command(below, "list")
async def list_(rt: Runtime) -> Result:
    """List trial derivations."""
    trials = await rederiving.all_shadows(rt, rt.settings.tenant)
    return rows(trials, lambda trial: f"{trial.shadow}  {counted(trial.users, 'user')}", "no shadows")


@command(below, "diff")
async def compared(rt: Runtime, name: Name) -> Result:
    """Show how a trial differs from the stored memories, and what it cost."""
    return rows(await rederiving.compare(rt, rt.settings.tenant, name), _lines, document=_document)


@command(below, "promote")
async def promoted(rt: Runtime, name: Name, yes: Yes = False) -> Result:
    """Replace the stored memories by the trial's. Replaced ones end, and stay in the history."""
    await confirm(f"Replace the stored memories by those of trial {name}?", yes)
    with progress("promoting") as update:
        return rows(await rederiving.promote(rt, rt.settings.tenant, name, update), _lines, document=_document)


@command(below, "drop")
async def dropped(rt: Runtime, name: Name) -> Result:
    """Delete a trial."""
    made = rederiving.Shadow(name, await rederiving.drop(rt, rt.settings.tenant, name))
    return Result(made, f"dropped {name} of {counted(made.users, 'user')}")


def _lines(result: "rederiving.Compared") -> Iterator[str | Text]:
    difference = result.found
    yield Text(result.user, "bold")
    for row in difference.added:
        yield Text(f"  + {_line(row)}", "green")
    for old, new in difference.changed:
        yield Text(f"  ~ {_line(old)}  ->  {new.content}", "yellow")
    for row in difference.gone:
        yield Text(f"  - {_line(row)}", "red")
    counts = f"{len(difference.added)} added, {len(difference.changed)} changed, {len(difference.gone)} gone"
    cost = f"{counted(result.cost.calls, 'call')}, {counted(result.cost.tokens, 'token')}, ${result.cost.usd:.4f}"
    yield f"  {counts}, {difference.kept} as before; {cost}"


def _line(row: "StoredMemory") -> str:
    return f"{row.kind:<10} {row.content}  ({row.rule or row.origin})"


def _document(result: "rederiving.Compared") -> dict[str, Any]:
    return {
        "user": result.user,
        "added": [_row(row) for row in result.found.added],
        "changed": [{"old": _row(old), "new": _row(new)} for old, new in result.found.changed],
        "gone": [_row(row) for row in result.found.gone],
        "kept": result.found.kept,
        "cost": result.cost,
    }


def _row(row: "StoredMemory") -> dict[str, Any]:
    sources = [{"thread": source.thread, "seq": source.seq, "quote": source.quote} for source in row.sources]
    about = {"id": row.id, "kind": row.kind, "content": row.content, "value": row.value}
    return {**about, "origin": row.origin, "rule": row.rule, "sources": sources}
