"""rebuild, verify, lag, dead-letters: read models and the log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.confirming import Yes, confirm, someone_to_ask
from turnlog.consumers.cli.console import LAST_SEQ, Json, Tenant, emit, out, progress, run, tenant_of
from turnlog.events.errors import TurnlogError

if TYPE_CHECKING:
    from turnlog.projectors.projection import Projection


def _names() -> list[str]:
    from turnlog.projectors.registry import BY_NAME

    return list(BY_NAME)


Name = Annotated[str | None, typer.Argument(help="A projection.", autocompletion=_names)]
Seq = Annotated[int, typer.Argument(min=1, max=LAST_SEQ)]
Only = Annotated[str | None, typer.Option("--projection", help="Only this one's.", autocompletion=_names)]


def register(app: typer.Typer) -> None:
    app.command()(lag)
    app.command()(rebuild)
    app.command()(verify)
    letters = typer.Typer(help="Events that a projection could not apply.", no_args_is_help=True)
    letters.command("list")(list_letters)
    letters.command("show")(show_letter)
    letters.command("retry")(retry_letters)
    letters.command("drop")(drop_letter)
    app.add_typer(letters, name="dead-letters")


def lag(json: Json = False) -> None:
    """How far each projection is behind the log. Exit 1 when one is stalled."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened
        from turnlog.projectors import lag as lags

        async with opened(settings) as runtime, runtime.pool.connection() as conn:
            found = await lags.lag(runtime.log, conn)
        if json:
            emit([{**_fields(one), "behind": one.behind} for one in found])
        for one in () if json else found:
            state = "stalled" if one.stalled else f"{one.behind:,} behind" if one.behind else "up to date"
            parked = f", {one.parked} parked" if one.parked else ""
            out.print(f"{one.projection:<16} partition {one.partition}  {one.position:>10,}  {state}{parked}")
        return int(any(one.stalled for one in found))

    run(work, json)


def rebuild(
    name: Name = None,
    all_: Annotated[bool, typer.Option("--all", help="Every projection.")] = False,
    thread: Annotated[str | None, typer.Option(help="Only this thread's rows.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Make read models anew from the log, beside the live ones, with an atomic switch.

    With --thread, or --tenant alone, only those rows are made anew, in place.
    """

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened
        from turnlog.projectors.rebuild import rebuild_several
        from turnlog.projectors.replay import rebuild_tenant, rebuild_thread

        chosen = _chosen(name, all_)
        async with opened(settings) as runtime:
            alone = [p for p in chosen if p.per_thread or not all_]
            if thread is None and tenant is not None:
                whole = tenant_of(settings, tenant)
                made = [await rebuild_tenant(runtime.log, runtime.database_url, p, whole) for p in alone]
            elif thread is None:
                with progress(f"rebuilding {name or 'all'}") as update:
                    made = await rebuild_several(
                        runtime.log, runtime.database_url, chosen, lambda p: update(p.events, p.events + p.remaining)
                    )
            else:
                place = (tenant_of(settings, tenant), thread)
                made = [await rebuild_thread(runtime.log, runtime.database_url, p, *place) for p in alone]
        done = [{**_fields(one), "events_per_s": round(one.events_per_s, 1)} for one in made]
        if json:
            emit(done if all_ else done[0])
        for one in () if json else done:
            out.print(
                f"{one['projection']}: {one['events']:,} events in {one['seconds']:.2f} s "
                f"({one['events_per_s']:,.0f}/s)"
            )
        return 0

    run(work, json)


def verify(name: Name = None, json: Json = False) -> None:
    """Rebuild into a shadow and compare row for row. Exit 1 on any difference."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened, projecting
        from turnlog.projectors.verify import verify_several

        chosen = _chosen(name, everything=name is None)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle()
            with progress(f"verifying {name or 'all'}") as update:
                found = await verify_several(
                    runtime.log,
                    runtime.database_url,
                    chosen,
                    lambda p: update(p.events, p.events + p.remaining),
                )
        for one in () if json else found:
            verdict = "clean" if one.clean else f"{len(one.differences)} or more differences"
            parked = f", {one.parked} parked" if one.parked else ""
            out.print(f"{one.projection:<16} {one.rows:>10,} rows of {one.events:,} events: {verdict}{parked}")
            for difference in one.differences:
                out.print(f"  {difference.table} [{difference.key}] {difference.kind}", markup=False)
        if json:
            emit([{**_fields(one), "clean": one.clean} for one in found])
        return int(not all(one.clean for one in found))

    run(work, json)


def list_letters(projection: Only = None, json: Json = False) -> None:
    """Parked and dropped events."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened
        from turnlog.projectors.parking import listed

        only = _known(projection)
        async with opened(settings) as runtime, runtime.pool.connection() as conn:
            rows = await listed(conn, only)
        if json:
            emit(rows)
        elif not rows:
            out.print("no dead letters")
        for row in () if json else rows:
            out.print(
                f"{row['seq']:>8}  {row['projection']:<16} {row['status']:<8} {row['reason']:<7} "
                f"{row['thread_token'][:24]:<24} {row['error'][:120]}",
                markup=False,
            )
        return 0

    run(work, json)


def show_letter(seq: Seq, json: Json = False) -> None:
    """The event at a sequence as the log holds it, and why it is parked."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened
        from turnlog.consumers.tailing import line_at
        from turnlog.projectors.parking import listed

        async with opened(settings) as runtime, runtime.pool.connection() as conn:
            rows = [row for row in await listed(conn, None) if row["seq"] == seq]
            line = await line_at(runtime.log, seq)
        emit({**line.document(), "dead_letters": rows})
        return 0

    run(work, json)


def retry_letters(
    seq: Annotated[int | None, typer.Argument(help="A parked sequence; all when not given.")] = None,
    projection: Only = None,
    json: Json = False,
) -> None:
    """Apply parked events again, thread by thread in order."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened
        from turnlog.projectors.parking import listed
        from turnlog.projectors.registry import find
        from turnlog.projectors.replay import retry

        applied: list[int] = []
        parked: list[int] = []
        only = _known(projection)
        async with opened(settings) as runtime:
            async with runtime.pool.connection() as conn:
                rows = [r for r in await listed(conn, only) if r["status"] == "parked"]
            chosen = [r for r in rows if seq is None or r["seq"] == seq]
            if seq is not None and not chosen:
                raise TurnlogError(f"no event is parked at sequence {seq}; `turnlog dead-letters list` shows them")
            for name, place in sorted({(r["projection"], (r["tenant"], r["thread_token"])) for r in chosen}):
                done = await retry(runtime.log, runtime.database_url, find(name), place)
                applied += done.applied
                parked += done.parked
        if json:
            emit({"applied": sorted(set(applied)), "parked": sorted(set(parked))})
        else:
            out.print(f"{len(set(applied))} applied, {len(set(parked))} still parked")
        return int(bool(parked))

    run(work, json)


def drop_letter(
    seq: Seq,
    projection: Only = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Give an event up for the read models; it stays in the log and in this list, and what waited goes on."""

    async def work(settings: Settings) -> int:
        someone_to_ask(yes, json)
        from turnlog.consumers.runtime import opened
        from turnlog.projectors.parking import listed
        from turnlog.projectors.registry import find
        from turnlog.projectors.replay import drop

        applied: list[int] = []
        only = _known(projection)
        async with opened(settings) as runtime:
            async with runtime.pool.connection() as conn:
                rows = [r for r in await listed(conn, only) if r["status"] == "parked" and r["seq"] == seq]
            if not rows:
                raise TurnlogError(f"no event is parked at sequence {seq}; `turnlog dead-letters list` shows them")
            await confirm(f"Leave the event at sequence {seq} out of the read models for good?", yes)
            for row in rows:
                done = await drop(runtime.log, runtime.database_url, find(row["projection"]), seq)
                applied += done.applied
        if json:
            emit({"dropped": seq, "applied": sorted(set(applied))})
        else:
            out.print(f"dropped {seq}; {len(set(applied))} events behind it applied")
        return 0

    run(work, json)


def _known(projection: str | None) -> str | None:
    """Raises NotFound for a projection there is not."""
    from turnlog.projectors.registry import find

    return find(projection).name if projection is not None else None


def _chosen(name: str | None, everything: bool) -> "Sequence[Projection]":
    from turnlog.projectors.registry import BY_NAME, PROJECTIONS, find

    if name is not None:
        return [find(name)]
    if everything:
        return PROJECTIONS
    raise TurnlogError(f"name a projection ({', '.join(BY_NAME)}) or give --all")


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
