"""rederive run|list|diff|promote|drop: what other rules, another prompt or model would remember."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.confirming import Yes, confirm, someone_to_ask
from turnlog.consumers.cli.console import Json, Tenant, check_given, emit, out, progress, run, tenant_of

if TYPE_CHECKING:
    from turnlog.consumers.rederiving import Compared
    from turnlog.projectors.memory_lookup import StoredMemory

Name = Annotated[str, typer.Argument(help="The shadow's name: letters, digits, '_' and '-'.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Remember anew with other rules, prompt or model, beside what is remembered.", no_args_is_help=True
    )
    group.command("run")(derived)
    group.command("list")(listed)
    group.command("diff")(compared)
    group.command("promote")(promoted)
    group.command("drop")(dropped)
    app.add_typer(group, name="rederive")


def derived(
    name: Name,
    user: Annotated[list[str] | None, typer.Option(help="Only this user; may be given again. All users.")] = None,
    rules: Annotated[Path | None, typer.Option(help="Rules to use in place of MEMORY_RULES_FILE.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to use in place of TURNLOG_MODEL.")] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="Prompt to use in place of MEMORY_EXTRACT_PROMPT_FILE, or of the one built in.")
    ] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Extract from everything that was said into a shadow; nothing that is remembered changes.

    Run again under the same name it goes on where it ended.
    """

    async def work(settings: Settings) -> int:
        from turnlog.consumers.rederiving import compare, derive
        from turnlog.consumers.runtime import opened, projecting

        given = {"rules_file": rules, "model": model, "extract_prompt_file": prompt}
        chosen = settings.model_copy(update={key: value for key, value in given.items() if value is not None})
        place = tenant_of(settings, tenant)
        for one in user or ():
            check_given("user", one)
        async with opened(chosen) as runtime, projecting(runtime):
            with progress("extracting") as update:
                await derive(runtime, place, name, user or (), update)
            _show(await compare(runtime, place, name), json)
        return 0

    run(work, json)


def listed(tenant: Tenant = None, json: Json = False) -> None:
    """The shadows there are."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.rederiving import all_shadows
        from turnlog.consumers.runtime import opened, projecting

        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("memories",))
            found = await all_shadows(runtime, tenant_of(settings, tenant))
        if json:
            emit([{"shadow": name, "users": users} for name, users in found])
        elif not found:
            out.print("no shadows", markup=False)
        for name, users in () if json else found:
            out.print(f"{name}  {_users(users)}", markup=False)
        return 0

    run(work, json)


def compared(name: Name, tenant: Tenant = None, json: Json = False) -> None:
    """What the shadow remembers and nobody else, what it does not, and what it cost."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.rederiving import compare
        from turnlog.consumers.runtime import opened, projecting

        async with opened(settings) as runtime, projecting(runtime):
            _show(await compare(runtime, tenant_of(settings, tenant), name), json)
        return 0

    run(work, json)


def promoted(
    name: Name,
    yes: Yes = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Make the shadow's memories the ones that count; what goes is closed and stays in their history."""

    async def work(settings: Settings) -> int:
        someone_to_ask(yes, json)
        from turnlog.consumers.rederiving import promote
        from turnlog.consumers.runtime import opened, projecting

        await confirm(f"Take over what shadow {name} remembers?", yes)
        async with opened(settings) as runtime, projecting(runtime):
            with progress("promoting") as update:
                done = await promote(runtime, tenant_of(settings, tenant), name, update)
        _show(done, json)
        return 0

    run(work, json)


def dropped(name: Name, tenant: Tenant = None, json: Json = False) -> None:
    """Take the shadow away."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.rederiving import drop
        from turnlog.consumers.runtime import opened, projecting

        async with opened(settings) as runtime, projecting(runtime):
            users = await drop(runtime, tenant_of(settings, tenant), name)
        told = f"dropped {name} of {_users(users)}"
        emit({"shadow": name, "users": users}) if json else out.print(told, markup=False)
        return 0

    run(work, json)


def _users(count: int) -> str:
    return "1 user" if count == 1 else f"{count} users"


def _show(found: "list[Compared]", as_json: bool) -> None:
    if as_json:
        emit([_document(one) for one in found])
        return
    for one in found:
        out.print(one.user, style="bold", markup=False)
        for row in one.found.added:
            out.print(f"  + {_line(row)}", style="green", markup=False)
        for old, new in one.found.changed:
            out.print(f"  ~ {_line(old)}  ->  {new.content}", style="yellow", markup=False)
        for row in one.found.gone:
            out.print(f"  - {_line(row)}", style="red", markup=False)
        counts = f"{len(one.found.added)} added, {len(one.found.changed)} changed, {len(one.found.gone)} gone"
        cost = f"{one.cost.calls} calls, {one.cost.tokens:,} tokens, ${one.cost.usd:.4f}"
        out.print(f"  {counts}, {one.found.kept} as before; {cost}", markup=False)


def _line(row: "StoredMemory") -> str:
    return f"{row.kind:<10} {row.content}  ({row.rule or row.origin})"


def _document(one: "Compared") -> dict[str, Any]:
    return {
        "user": one.user,
        "added": [_row(row) for row in one.found.added],
        "changed": [{"old": _row(old), "new": _row(new)} for old, new in one.found.changed],
        "gone": [_row(row) for row in one.found.gone],
        "kept": one.found.kept,
        "cost": one.cost,
    }


def _row(row: "StoredMemory") -> dict[str, Any]:
    sources = [{"thread": source.thread, "seq": source.seq, "quote": source.quote} for source in row.sources]
    about = {"id": row.id, "kind": row.kind, "content": row.content, "value": row.value}
    return {**about, "origin": row.origin, "rule": row.rule, "sources": sources}
