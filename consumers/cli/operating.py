"""lag, rebuild, verify, usage: the read models as a whole."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic_core import to_jsonable_python
from rich.cells import cell_len

from turnlog.agent.counting import counted
from turnlog.consumers.cli.console import BadOption, padded
from turnlog.consumers.cli.options import Tenant, add
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.embedding.backlog import Backlog
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.usage import Usage
    from turnlog.projectors.engine.lag import Lag
    from turnlog.projectors.rebuild.rebuild import Rebuilt
    from turnlog.projectors.rebuild.verify import Verified


def projection_names() -> list[str]:
    from turnlog.projectors.models.registry import BY_NAME

    return list(BY_NAME)


Name = Annotated[str | None, typer.Argument(help="A projection.", autocompletion=projection_names)]
Key = Literal["user", "agent", "model", "day", "month"]


def register(app: typer.Typer) -> None:
    for command in (lag, rebuild, verify):
        add(app, command, tenant=False)
    add(app, usage)


def lag() -> None:
    """How far each projection is behind the log, and what has no vector yet. Exit 1 when a projection is stalled, or a
    process has died and nobody plays its roles.
    """
    from turnlog.agent.use_cases.lag import embedding_backlog, projection_lag
    from turnlog.agent.use_cases.processes import deaths, processes

    async def look(runtime: "Runtime") -> "tuple[list[Lag], Backlog, list[str]]":
        died = deaths(await processes(runtime))
        return await projection_lag(runtime), await embedding_backlog(runtime), died

    serve(
        look,
        lambda found: [*map(_lag_line, found[0]), f"{'embedding':<16} {found[1].sentence()}", *found[2]],
        document=lambda found: {
            "projections": [to_jsonable_python(one) | {"behind": one.behind} for one in found[0]],
            "embedding": found[1].document(),
            "died": found[2],
        },
        code=lambda found: int(bool(found[2]) or any(one.stalled for one in found[0])),
        projecting=False,
    )


def rebuild(
    name: Name = None,
    all_: Annotated[bool, typer.Option("--all", help="Every projection.")] = False,
    thread: Annotated[str | None, typer.Option(help="Only this thread's rows.")] = None,
    tenant: Tenant = None,
) -> None:
    """Rebuild read models from the log, beside the live ones, with an atomic switch. With --thread, or --tenant
    alone, only those rows are rebuilt, in place.
    """
    from turnlog.agent.use_cases import operations
    from turnlog.consumers.cli.progress_bars import progress

    async def use(runtime: "Runtime") -> "list[Rebuilt]":
        if thread is not None or tenant is not None:
            chosen = runtime.settings.tenant if tenant is None else tenant
            return await operations.rebuild_rows(runtime, name, chosen, thread)
        with progress(f"rebuilding {name or 'all'}") as update:
            return await operations.rebuild(runtime, name, update)

    def document(made: "list[Rebuilt]") -> Any:
        done = [to_jsonable_python(one) | {"events_per_s": round(one.events_per_s, 1)} for one in made]
        return done if name is None else done[0]

    serve(
        use,
        lambda made: map(_rebuilt_line, made),
        document=document,
        projecting=False,
        first=lambda: _check_named(name, all_),
    )


def verify(name: Name = None) -> None:
    """Rebuild into a shadow and compare row for row. Exit 1 on any difference."""
    from turnlog.agent.use_cases import operations
    from turnlog.consumers.cli.progress_bars import progress

    async def use(runtime: "Runtime") -> "list[Verified]":
        with progress(f"verifying {name or 'all'}") as update:
            return await operations.verify(runtime, name, update)

    serve(
        use,
        _verified_lines,
        document=lambda found: [to_jsonable_python(one) | {"clean": one.clean} for one in found],
        code=lambda found: int(not all(one.clean for one in found)),
    )


def usage(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None,
    by: Annotated[Key, typer.Option(help="What to sum by: user, agent, model, day or month.")] = "day",
) -> None:
    """Calls, tokens, cost and mean latency of models, embeddings and offline ones included, summed by user, agent,
    model, day or month (UTC)."""
    from turnlog.agent.use_cases.usage import usage as usage_of

    serve(lambda rt: usage_of(rt, rt.settings.tenant, user, by), usage_lines, projecting=False)


def _check_named(name: str | None, all_: bool) -> None:
    if name is None and not all_:
        raise BadOption(f"name a projection ({', '.join(projection_names())}) or give --all")


def _lag_line(one: "Lag") -> str:
    state = "stalled" if one.stalled else f"{one.behind:,} behind" if one.behind else "up to date"
    if one.rebuilt is not None:
        state += f", rebuilding for this version {one.rebuilt:.0%}"
    parked = f", {one.parked} parked" if one.parked else ""
    return f"{one.projection:<16} partition {one.partition}  {one.position:>10,}  {state}{parked}"


def _rebuilt_line(one: "Rebuilt") -> str:
    return f"{one.projection}: {counted(one.events, 'event')} in {one.seconds:.2f} s ({one.events_per_s:,.0f}/s)"


def _verified_lines(found: "Iterable[Verified]") -> Iterator[str]:
    for one in found:
        verdict = "clean" if one.clean else f"{len(one.differences)} or more differences"
        parked = f", {one.parked} parked" if one.parked else ""
        rows, events = counted(one.rows, "row"), counted(one.events, "event")
        yield f"{one.projection:<16} {rows:>15} of {events}: {verdict}{parked}"
        yield from (f"  {difference.table} [{difference.key}] {difference.kind}" for difference in one.differences)


def usage_lines(found: "Sequence[Usage]") -> Iterator[str]:
    if not found:
        yield "no language model was used yet"
    width = max((cell_len(one.key or "-") for one in found), default=0)
    for one in found:
        errors = f"  {counted(one.errors, 'error')}" if one.errors else ""
        tokens = f"{one.tokens_in:>12,} tokens in {one.tokens_out:>10,} out"
        spent = f"${one.cost_usd:.4f}  {one.latency_ms_mean:,} ms"
        yield f"{padded(one.key or '-', max(width, 20))} {counted(one.calls, 'call'):>14} {tokens}  {spent}{errors}"
