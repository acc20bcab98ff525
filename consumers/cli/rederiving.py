"""rederive run|list|diff|promote|drop: what other rules, another prompt or model would remember."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from turnlog.agent.counting import counted
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.rederiving import Compared, Shadow
    from turnlog.projectors.models.memories.lookup import StoredMemory

Name = Annotated[str, typer.Argument(help="The shadow's name: letters, digits, '_' and '-'.")]


def register(app: typer.Typer) -> None:
    about = "Extract memories with other rules, prompt or model, beside those that are stored."
    rederive = group(app, "rederive", about)
    add(rederive, derived, "run")
    add(rederive, listed, "list")
    add(rederive, compared, "diff")
    add(rederive, promoted, "promote")
    add(rederive, dropped, "drop")


def derived(
    name: Name,
    user: Annotated[list[str] | None, typer.Option(help="Only this user; repeatable. Default: all users.")] = None,
    rules: Annotated[Path | None, typer.Option(help="Rules to use in place of MEMORY_RULES_FILE.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to use in place of TURNLOG_MODEL.")] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="Prompt to use in place of MEMORY_EXTRACT_PROMPT_FILE, or of the one built in.")
    ] = None,
) -> None:
    """Extract from all turns into a shadow; memories do not change. Run again with the same name, it continues where
    it stopped.
    """
    from turnlog.consumers.cli.progress_bars import progress

    async def use(runtime: "Runtime") -> "list[Compared]":
        from turnlog.agent.use_cases.rederiving import OtherExtractor, compare, derive

        place = runtime.settings.tenant
        with progress("extracting") as update:
            await derive(runtime, place, name, user or (), update, OtherExtractor(rules, model, prompt))
        return await compare(runtime, place, name)

    serve(use, _lines, document=_documents)


def listed() -> None:
    """All shadows."""
    from turnlog.agent.use_cases.rederiving import all_shadows

    serve(
        lambda rt: all_shadows(rt, rt.settings.tenant),
        lambda found: [f"{one.shadow}  {counted(one.users, 'user')}" for one in found] or ["no shadows"],
    )


def compared(name: Name) -> None:
    """How the shadow differs from the memories, and what it cost."""
    from turnlog.agent.use_cases.rederiving import compare

    serve(lambda rt: compare(rt, rt.settings.tenant, name), _lines, document=_documents)


def promoted(name: Name, yes: Yes = False) -> None:
    """Replace the memories by the shadow's; replaced ones are closed and stay in the history."""
    from turnlog.consumers.cli.progress_bars import progress

    async def use(runtime: "Runtime") -> "list[Compared]":
        from turnlog.agent.use_cases.rederiving import promote

        await confirm(f"Take over what shadow {name} remembers?", yes)
        with progress("promoting") as update:
            return await promote(runtime, runtime.settings.tenant, name, update)

    serve(use, _lines, document=_documents, confirmed=yes)


def dropped(name: Name) -> None:
    """Delete the shadow."""

    async def use(runtime: "Runtime") -> "Shadow":
        from turnlog.agent.use_cases.rederiving import Shadow, drop

        return Shadow(name, await drop(runtime, runtime.settings.tenant, name))

    serve(use, lambda made: [f"dropped {name} of {counted(made.users, 'user')}"])


def _lines(found: "list[Compared]") -> Iterator[str | Text]:
    for one in found:
        yield Text(one.user, "bold")
        for row in one.found.added:
            yield Text(f"  + {_line(row)}", "green")
        for old, new in one.found.changed:
            yield Text(f"  ~ {_line(old)}  ->  {new.content}", "yellow")
        for row in one.found.gone:
            yield Text(f"  - {_line(row)}", "red")
        counts = f"{len(one.found.added)} added, {len(one.found.changed)} changed, {len(one.found.gone)} gone"
        cost = f"{counted(one.cost.calls, 'call')}, {counted(one.cost.tokens, 'token')}, ${one.cost.usd:.4f}"
        yield f"  {counts}, {one.found.kept} as before; {cost}"


def _line(row: "StoredMemory") -> str:
    return f"{row.kind:<10} {row.content}  ({row.rule or row.origin})"


def _documents(found: "list[Compared]") -> list[dict[str, Any]]:
    return [
        {
            "user": one.user,
            "added": [_row(row) for row in one.found.added],
            "changed": [{"old": _row(old), "new": _row(new)} for old, new in one.found.changed],
            "gone": [_row(row) for row in one.found.gone],
            "kept": one.found.kept,
            "cost": one.cost,
        }
        for one in found
    ]


def _row(row: "StoredMemory") -> dict[str, Any]:
    sources = [{"thread": source.thread, "seq": source.seq, "quote": source.quote} for source in row.sources]
    about = {"id": row.id, "kind": row.kind, "content": row.content, "value": row.value}
    return {**about, "origin": row.origin, "rule": row.rule, "sources": sources}
