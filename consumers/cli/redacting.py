"""The commands `redact`, which strikes words of a turn or all of it, and `retention`, which lists turns past their
retention period.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.agent.privacy.redaction import redact as redaction
from turnlog.agent.privacy.redaction import retention as by_age
from turnlog.consumers import erasing
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import BadOption, Result, columns, warn
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

if TYPE_CHECKING:
    from turnlog.agent.privacy.redaction.redact import RedactionPlan, RedactionReceipt

app = commands()


@command(app, process="turnlog-redact")
async def redact(
    rt: Runtime,
    thread: Annotated[str, typer.Argument(help="The conversation.")],
    seq: Annotated[int, typer.Argument(help="Sequence of the turn, as `turnlog messages` shows it.", min=1)],
    words: Annotated[str | None, typer.Option(help="A word or phrase; case does not matter.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Strike all that the turn says.")] = False,
    by: Annotated[str | None, typer.Option(help="Who asked for it, for the receipt.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Reason, stored in the receipt permanently; do not name a secret.")
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show where the words occur; strike nothing.")] = False,
) -> Result:
    """Strike words, or a whole turn, from the log and everything derived from it; then search for what is left.

    If it is interrupted, run it again. Exit code 1 means that the search found something.
    """
    if (words is None) != whole:
        raise BadOption("say what to strike: either --words or --whole")
    turn = (rt.settings.tenant, thread, seq)
    plan = await redaction.plan_redaction(rt, *turn, words)
    if dry_run:
        return Result(asdict(plan.preview), _plan_lines(plan))
    for line in () if yes else _plan_lines(plan):
        warn(line)
    await confirm(f"Strike this? It cannot be undone. Thread {thread}", yes)
    reach = erasing.erasure_reach(rt.settings, progress)
    receipt = await redaction.redact_turn(rt, *turn, reach, words, by, reason)
    return Result(_document(receipt), _receipt_lines(receipt), code=int(bool(receipt.data.hits)))


@command(app)
async def retention(rt: Runtime) -> Result:
    """Show which turns are older than their user's retention_days or TURNLOG_RETENTION_DAYS; delete nothing.

    The job `retention` removes them daily, or now with `turnlog jobs run retention`.
    """
    days = rt.settings.retention_days
    limit = f"TURNLOG_RETENTION_DAYS is {days}" if days else "TURNLOG_RETENTION_DAYS is not set"
    none = f"no turns are past their retention period ({limit}; a user's own retention_days may be stricter)"
    return table(await by_age.too_old(rt, rt.settings.tenant, datetime.now(UTC)), _COLUMNS, none=none)


_COLUMNS: "dict[str, Callable[[by_age.TooOld], Any]]" = {
    "USER": lambda row: row.user or "",
    "DAYS": lambda row: row.days,
    "TURNS": lambda row: f"{row.turns:,}",
    "CONVERSATIONS": lambda row: f"{row.conversations:,}",
}


def _plan_lines(plan: "RedactionPlan") -> Iterator[str]:
    preview = plan.preview
    yield f"turn {preview.seq} of {preview.thread}: {counted(len(plan.struck), 'event')} with these words"
    yield from columns(preview.events)
    if preview.memories:
        yield f"{counted(preview.memories, 'memory', 'memories')} will be forgotten"


def _document(receipt: "RedactionReceipt") -> dict[str, Any]:
    return {
        "receipt": receipt.seq,
        "seconds": round(receipt.seconds, 1),
        **receipt.data.model_dump(mode="json", exclude={"type"}),
        "left": receipt.hits,
        "strings": receipt.strings,
    }


def _receipt_lines(receipt: "RedactionReceipt") -> Iterator[str]:
    data = receipt.data
    yield f"turn {data.seq} of {data.conversation} is redacted: {counted(data.events, 'event')} replaced"
    if data.removed:
        yield f"{counted(data.removed, 'event')} of a model removed; they are made again"
    if data.memories:
        yield f"{counted(data.memories, 'memory', 'memories')} forgotten"
    yield f"searched for {counted(data.strings_searched, 'string')}"
    yield from columns(data.scanned)
    yield f"receipt: sequence {receipt.seq} on {receipt.thread}, {receipt.seconds:.1f} s"
    if not data.hits:
        found_none = "none of them was found"
        yield found_none if data.strings_searched else "its words occur in other turns too, so none was searched for"
        return
    yield f"FOUND {counted(data.hits, 'time')}"
    yield from columns(receipt.hits)
    yield "check these places: somebody said it elsewhere too, or turnlog cannot reach it"
