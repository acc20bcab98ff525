"""The command `erase`: removes a person's data everywhere, and prints a receipt."""

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.agent.privacy import personal_data
from turnlog.consumers import erasing
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import BadOption, Result, columns, warn
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.events.subjects import OWN_THREADS

if TYPE_CHECKING:
    from turnlog.agent.privacy.erasure.erasure_plan import Plan
    from turnlog.agent.privacy.erasure.erasure_receipt import Receipt

MOST_NAMED, MOST_THREADS = 20, 5
# Advice for strings that the search found, by the beginning of the name of the place.
TO_DO = {
    "table ": "a table: `turnlog redact` strikes words of other people's turns, `turnlog forget` their memories",
    "rows left": "rows left: `turnlog rebuild --all` makes the tables again",
    "bucket ": "a bucket: its copies end by themselves within half an hour",
    "log files": "a log file: delete it, or wait until it is rotated",
}
_STRINGS = "Give a UTF-8 text file with one string per line, or leave --strings out; nothing was erased"


app = commands()


@cache  # a pipe can be read only once
def _strings_of(strings: Path | None) -> list[str]:
    """Returns the strings in the file. Raises BadOption. Called before anything is opened."""
    if strings is None:
        return []
    try:
        lines = [line.strip() for line in strings.read_text("utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise BadOption(f"--strings {strings} cannot be read: {error.strerror}. {_STRINGS}") from error
    except UnicodeDecodeError as error:
        raise BadOption(f"--strings {strings} is not text in UTF-8 (byte {error.start}). {_STRINGS}") from error
    if not lines:
        raise BadOption(f"--strings {strings} contains no string. {_STRINGS}")
    return lines


@command(app, process="turnlog-erase", checks=_strings_of)
async def erase(
    rt: Runtime,
    user: Annotated[str, typer.Option("--user", "-u", help="Whose data.")],
    reason: Annotated[
        str | None, typer.Option(help="Reason, stored in the receipt permanently; do not name a person.")
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be erased; erase nothing.")] = False,
    namespace: Annotated[
        list[str] | None, typer.Option(help="A namespace of LangGraph's store that is theirs too, such as users.ann.")
    ] = None,
    strings: Annotated[
        Path | None, typer.Option(help="File with more strings to search for afterwards, one per line.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also rewrite each table under a lock (VACUUM FULL).")] = False,
) -> Result:
    """Erase a person: keys, rows, caches, archives and what is readable in the log; then search for what is left.

    If it is interrupted, run it again. Exit code 1 means that the search found something.
    """
    reach = erasing.erasure_reach(rt.settings, progress)
    owner = (rt.settings.tenant, user)
    plan = await personal_data.plan_erasure(rt, *owner, reach, namespace or (), _strings_of(strings))
    if dry_run:
        return Result(_plan_document(plan), _plan_lines(plan))
    for line in () if yes else _plan_lines(plan):
        warn(line)
    await confirm(f"Erase all of this? It cannot be undone. User {user}", yes)
    receipt = await personal_data.erase_person(rt, plan, reach, reason, full)
    return Result(_document(user, receipt), _receipt_lines(user, receipt), code=int(bool(receipt.data.found_in)))


def _plan_document(plan: "Plan") -> dict[str, Any]:
    return {
        "user": plan.person.user,
        "tenant": plan.person.tenant,
        "threads": sorted(plan.traces.own),
        "shared_threads": sorted(plan.traces.shared),
        "events": plan.events,
        "rows": plan.rows,
        "archives": list(plan.archives),
        "strings": len(plan.search_strings.strings),
        "passed_over": plan.passed_over,
    }


def _plan_lines(plan: "Plan") -> Iterator[str]:
    traces = plan.traces
    yield f"user {plan.person.user}: {counted(plan.events, 'event')} in {counted(len(traces.threads), 'thread')}"
    if traces.own:
        yield f"erased whole: {_threads(traces.own)}"
    yield from _kept(traces.shared)
    yield from columns(plan.rows)
    if plan.archives:
        yield from columns({"archive files": len(plan.archives)})
    yield from _passed_over(plan.passed_over)


def _document(user: str, receipt: "Receipt") -> dict[str, Any]:
    return {
        "user": user,
        "thread": receipt.thread,
        "seq": receipt.seq,
        "seconds": round(receipt.seconds, 1),
        **receipt.data.model_dump(mode="json", exclude={"type"}),
        "shared_threads": receipt.shared_threads,
        "left": receipt.hits,
        "strings": receipt.strings,
        "passed_over": receipt.passed_over,
    }


def _receipt_lines(user: str, receipt: "Receipt") -> Iterator[str]:
    data = receipt.data
    yield f"user {user} is erased: {counted(data.keys_destroyed, 'key')} destroyed, {counted(data.threads, 'thread')}"
    yield from _kept(receipt.shared_threads)
    yield "gone" if data.counts else "nothing was left to destroy"
    yield from columns(data.counts)
    yield f"searched for {counted(data.strings_searched, 'string')}"
    yield from columns(data.scanned)
    yield from _passed_over(receipt.passed_over)
    yield f"receipt: sequence {receipt.seq} on {receipt.thread}, {receipt.seconds:.1f} s"
    if not data.strings_searched:
        yield "no words are left to search for, as after an earlier run; give some with --strings FILE"
    if data.hits:
        yield f"FOUND {counted(data.hits, 'time')}"
        yield from columns({_place(where, receipt.strings): count for where, count in receipt.hits.items()})
    if receipt.before:
        times = counted(sum(receipt.before.values()), "time")
        yield f"an earlier run FOUND words {times}; none has searched for them since"
        yield from columns(receipt.before)
    if data.found_in:
        yield "check these places: somebody else wrote it there, or turnlog cannot reach it"
        yield from (todo for begins, todo in TO_DO.items() if any(place.startswith(begins) for place in data.found_in))
        yield (
            "the words are not kept: write words that you know to be theirs into FILE, one a line, such as a mail "
            f"address, and run `turnlog erase --user {user} --strings FILE`; it exits with 0 once none is found"
        )
    elif data.strings_searched:
        yield "none of them was found"


def _kept(shared: Collection[str]) -> Iterator[str]:
    if shared:
        yield f"shared with others, kept without the words of this person: {_threads(shared)}"


def _threads(threads: Collection[str]) -> str:
    """Returns the ids of a few threads, conversations first, and the number of the others."""
    ids = sorted(threads, key=lambda thread: (thread.startswith(OWN_THREADS), thread))
    more = f" and {len(ids) - MOST_THREADS:,} more (--dry-run --json names all)" if len(ids) > MOST_THREADS else ""
    return ", ".join(ids[:MOST_THREADS]) + more


def _place(where: str, strings: dict[str, list[str]]) -> str:
    shown = strings.get(where, [])
    more = f" and {len(shown) - MOST_NAMED:,} more" if len(shown) > MOST_NAMED else ""
    return f"{where}: {', '.join(shown[:MOST_NAMED])}{more}" if shown else where


def _passed_over(seqs: Sequence[int]) -> Iterator[str]:
    if seqs:
        named = ", ".join(map(str, seqs[:MOST_NAMED])) + (" …" if len(seqs) > MOST_NAMED else "")
        yield f"skipped, because they contain the user's id and cannot be read: sequence {named}"
        yield "`turnlog dead-letters show SEQ` shows one"
