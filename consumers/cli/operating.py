"""The commands `lag`, `rebuild` and `verify`: the read models as a whole."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic_core import to_jsonable_python

from turnlog.agent.counting import counted
from turnlog.agent.operations import lag as lags
from turnlog.agent.operations import read_models, role_processes
from turnlog.consumers.cli.console import BadOption, Result
from turnlog.consumers.cli.options import Tenant, commands
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

if TYPE_CHECKING:
    from turnlog.projectors.engine.lag import Lag
    from turnlog.projectors.rebuild.verify import Verified


Name = Annotated[
    str | None, typer.Argument(help="A projection.", autocompletion=lambda: read_models.projection_names())
]
LOOK_AGAIN_S = 0.2

app = commands()


@command(app, tenant=False, projecting=False)
async def lag(
    rt: Runtime,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait at most until everything is derived.")] = 0.0,
) -> Result:
    """Show how far each projection is behind the log, and how much has no vector yet. Exit code 1 if a projection is
    stalled, if a process has died and no other plays its roles, or if --wait ends before everything is derived.
    """
    until, waits = time.monotonic() + wait, wait > 0
    while waits and (waits := not await lags.all_derived(rt)) and time.monotonic() < until:
        await asyncio.sleep(LOOK_AGAIN_S)
    died = role_processes.deaths(await role_processes.processes(rt))
    projections, backlog = await lags.projection_lag(rt), await lags.embedding_backlog(rt)
    document = {
        "projections": [to_jsonable_python(projection) | {"behind": projection.behind} for projection in projections],
        "embedding": backlog.document(),
        "died": died,
    }
    lines = [*table(projections, _LAG_COLUMNS).lines, f"embedding: {backlog.sentence()}", *died]
    is_stalled = any(projection.stalled for projection in projections)
    return Result(document, lines, code=int(waits or bool(died) or is_stalled))


def _check_named(name: str | None, all_: bool) -> None:
    if name is None and not all_:
        raise BadOption(f"name a projection ({', '.join(read_models.projection_names())}) or give --all")


@command(app, tenant=False, projecting=False, checks=_check_named)
async def rebuild(
    rt: Runtime,
    name: Name = None,
    all_: Annotated[bool, typer.Option("--all", help="Every projection.")] = False,
    thread: Annotated[str | None, typer.Option(help="Only this thread's rows.")] = None,
    from_seq: Annotated[
        int | None, typer.Option("--from", min=1, help="Only threads with an event at or after this sequence.")
    ] = None,
    tenant: Tenant = None,
) -> Result:
    """Rebuild read models from the log, beside the live ones, and switch atomically. With --thread, --from or --tenant,
    only those rows of the tenant are rebuilt, in place.
    """
    if thread is not None or from_seq is not None or tenant is not None:
        chosen = rt.settings.tenant if tenant is None else tenant
        made = await read_models.rebuild_rows(rt, name, chosen, thread, from_seq=from_seq or 1)
    else:
        with progress(f"rebuilding {name or 'all'}") as update:
            made = await read_models.rebuild(rt, name, update)
    done: Any = [to_jsonable_python(model) | {"events_per_s": round(model.events_per_s, 1)} for model in made]
    lines = [
        f"{model.projection}: {counted(model.events, 'event')} in {model.seconds:.2f} s ({model.events_per_s:,.0f}/s)"
        for model in made
    ]
    return Result(done if name is None else done[0], lines)


@command(app, tenant=False)
async def verify(rt: Runtime, name: Name = None) -> Result:
    """Rebuild into shadow tables and compare row for row. Exit code 1 on any difference."""
    with progress(f"verifying {name or 'all'}") as update:
        projections = await read_models.verify(rt, name, update)
    document = [to_jsonable_python(projection) | {"clean": projection.clean} for projection in projections]
    lines = [line for projection in projections for line in _verified_lines(projection)]
    return Result(document, lines, code=int(not all(projection.clean for projection in projections)))


def _state(projection: "Lag") -> str:
    state = "stalled" if projection.stalled else f"{projection.behind:,} behind" if projection.behind else "up to date"
    if projection.rebuilt is not None:
        state += f", rebuilding for this version {projection.rebuilt:.0%}"
    parked = f", {projection.parked} parked" if projection.parked else ""
    return f"{state}{parked}"


_LAG_COLUMNS: dict[str, Callable[["Lag"], Any]] = {
    "PROJECTION": lambda row: row.projection,
    "PARTITION": lambda row: row.partition,
    "POSITION": lambda row: row.position,
    "STATE": _state,
}


def _verified_lines(verified: "Verified") -> Iterator[str]:
    verdict = "clean" if verified.clean else f"{len(verified.differences)} or more differences"
    parked = f", {verified.parked} parked" if verified.parked else ""
    counts = f"{counted(verified.rows, 'row'):>15} of {counted(verified.events, 'event')}"
    yield f"{verified.projection:<16} {counts}: {verdict}{parked}"
    yield from (f"  {difference.table} [{difference.key}] {difference.kind}" for difference in verified.differences)
