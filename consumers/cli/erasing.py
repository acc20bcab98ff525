"""erase: a person's data, out of everything, with a receipt (M9)."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.confirming import Yes, confirm, someone_to_ask
from turnlog.consumers.cli.console import BadOption, Json, Tenant, emit, err, out, progress, run, tenant_of
from turnlog.events.errors import NotFound

if TYPE_CHECKING:
    from turnlog.agent.privacy.erase import Plan
    from turnlog.agent.privacy.receipt import Receipt


_STRINGS = "Name a text file in UTF-8 with a string a line, or leave --strings out; nothing was erased"


def register(app: typer.Typer) -> None:
    app.command()(erase)


def erase(
    user: Annotated[str, typer.Option("--user", "-u", help="Whose data.")],
    reason: Annotated[str | None, typer.Option(help="Why, for the receipt; it stays, so name nobody.")] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what there is, and erase nothing.")] = False,
    namespace: Annotated[
        list[str] | None, typer.Option(help="A namespace of LangGraph's store that is theirs too, such as users.ann.")
    ] = None,
    strings: Annotated[
        Path | None, typer.Option(help="File with more strings to search for afterwards, one a line.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Write the tables anew (VACUUM FULL); locks each while it lasts.")
    ] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Erase a person: keys, rows, caches, archives and what is readable in the log; then search for what is left.

    Killed on the way it is run again. Exit 1 when the search found something.
    """

    async def work(settings: Settings) -> int:
        someone_to_ask(yes or dry_run, json)
        from turnlog.agent.privacy import erase as erasing
        from turnlog.consumers.erasing import person_of, surroundings
        from turnlog.consumers.runtime import opened, projecting

        person = person_of(tenant_of(settings, tenant), user, namespace or ())
        searched = _lines(strings)
        async with opened(settings, "turnlog-erase") as runtime, projecting(runtime):
            at = surroundings(runtime, progress)
            plan = await erasing.planned(at, person, searched)
            if plan.is_empty:
                raise NotFound(f"there is nothing of user {user!r} in tenant {person.tenant!r}")
            if dry_run:
                emit(_plan_document(plan)) if json else _show_plan(plan)
                return 0
            if not yes:
                _show_plan(plan)
            await confirm(f"Erase all of this for good? It cannot be undone. User {user}", yes)
            receipt = await erasing.erase(at, plan, reason, full)
        emit(_document(user, receipt)) if json else _show(user, receipt)
        return int(receipt.data.hits > 0)

    run(work, json)


def _lines(path: Path | None) -> list[str]:
    """Comes before anything else. Raises BadOption."""
    if path is None:
        return []
    try:
        found = [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise BadOption(f"--strings {path} cannot be read: {error.strerror}. {_STRINGS}") from error
    except UnicodeDecodeError as error:
        raise BadOption(f"--strings {path} is no text in UTF-8 (byte {error.start}). {_STRINGS}") from error
    if not found:
        raise BadOption(f"--strings {path} holds no string. {_STRINGS}")
    return found


def _plan_document(plan: "Plan") -> dict[str, Any]:
    return {
        "user": plan.person.user,
        "tenant": plan.person.tenant,
        "threads": sorted(plan.traces.own),
        "shared_threads": sorted(plan.traces.shared),
        "events": plan.events,
        "rows": plan.rows,
        "archives": list(plan.archives),
        "strings": len(plan.needles.strings),
    }


def _show_plan(plan: "Plan") -> None:
    traces = plan.traces
    err.print(f"user {plan.person.user}: {plan.events:,} events in {len(traces.threads):,} threads", markup=False)
    if traces.shared:
        err.print(f"{len(traces.shared):,} of them are shared with others, whose words stay", markup=False)
    for table, count in plan.rows.items():
        err.print(f"  {count:>9,}  {table}", markup=False)
    if plan.archives:
        err.print(f"  {len(plan.archives):>9,}  archive files", markup=False)


def _document(user: str, receipt: "Receipt") -> dict[str, Any]:
    return {
        "user": user,
        "thread": receipt.thread,
        "seq": receipt.seq,
        "seconds": round(receipt.seconds, 1),
        **receipt.data.model_dump(mode="json", exclude={"type"}),
        "left": receipt.hits,
    }


def _show(user: str, receipt: "Receipt") -> None:
    data = receipt.data
    out.print(f"user {user} is erased: {data.keys_destroyed:,} keys destroyed, {data.threads:,} threads", markup=False)
    _columns("gone" if data.counts else "nothing was left to destroy", data.counts.items())
    _columns(f"searched for {data.strings_searched:,} strings", data.scanned.items())
    out.print(f"receipt: sequence {receipt.seq} on {receipt.thread}, {receipt.seconds:.1f} s", markup=False)
    if not data.strings_searched:
        out.print("no strings were left to search for, as after a run that was killed: --strings FILE gives some")
    if not data.hits:
        out.print("nothing of them was found")
        return
    _columns(f"FOUND {data.hits:,} times", receipt.hits.items())
    out.print("run it again; what is found again was written by somebody else, or cannot be reached from here")


def _columns(title: str, counts: Iterable[tuple[str, int]]) -> None:
    out.print(title, markup=False)
    for name, count in counts:
        out.print(f"  {count:>9,}  {name}", markup=False)
