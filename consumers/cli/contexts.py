"""The commands `context` and `receipts`: what a model sees of a thread now, and what it saw for each answer."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from turnlog.agent.answering import context as contexts
from turnlog.agent.recall import recall
from turnlog.consumers.cli.console import Result, warn
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.rendering import context_lines, past_document, past_lines
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

Thread = Annotated[str, typer.Argument()]

app = commands()


@command(app, projecting=False)
async def context(
    rt: Runtime,
    thread: Thread,
    query: Annotated[str | None, typer.Option(help="A user message to add at the end.")] = None,
    window: Annotated[int | None, typer.Option(min=256, help="Context window in tokens.")] = None,
    hybrid: Annotated[
        bool | None,
        typer.Option(
            "--hybrid/--no-hybrid",
            help="If not all turns fit, prefer those that are relevant to the question.",
            show_default="on, unless MEMORY_HYBRID_EPISODES is 0",
        ),
    ] = None,
    as_of: Annotated[int | None, typer.Option(min=1, help="Show the context as of this sequence of the log.")] = None,
) -> Result:
    """Show what a model would see of a thread now, or saw at --as-of: the tiers with their tokens, and the messages."""
    place = (rt.settings.tenant, thread)
    if as_of is None:
        now = await contexts.context_of(rt, *place, query=query, window=window, hybrid=hybrid)
        warn(now.degraded)
        return Result(now.context.as_json(), context_lines(now.context))
    if hybrid:
        raise recall.BadQuery("--hybrid shows a thread as it is now, without --as-of")
    past = await contexts.context_as_of(rt, *place, as_of, query=query, window=window)
    return Result(past_document(past, as_of), past_lines(past, as_of))


@command(app, projecting=False)
async def receipts(rt: Runtime, thread: Thread) -> Result:
    """Show what the model saw for each answer of a thread; `turnlog context THREAD --as-of SEQ` shows it in full."""
    rows = await contexts.list_receipts(rt, rt.settings.tenant, thread)
    return table(rows, _RECEIPT_COLUMNS, "no answer was made in this thread yet", _receipt_document)


def _receipt_document(row: "contexts.ReceiptFound") -> dict[str, Any]:
    """Returns the receipt as stored, with the sequence, thread and time of its event."""
    return {"seq": row.seq, "thread": row.thread, "time": row.time} | row.receipt.model_dump(mode="json")


def _used(row: "contexts.ReceiptFound") -> str:
    receipt = row.receipt
    tiers = ", ".join(f"{'all' if t.tier == 'all' else f'tier {t.tier}'} {t.tokens:,}" for t in receipt.tiers)
    dropped = f"  {receipt.dropped.count:,} left out" if receipt.dropped.count else ""
    return f"{tiers} of {receipt.budget:,} tokens{dropped}"


_RECEIPT_COLUMNS: dict[str, Callable[["contexts.ReceiptFound"], Any]] = {
    "AS OF": lambda row: str(row.receipt.as_of_seq),
    "TIME": lambda row: f"{row.time:%F %H:%M}",
    "MODEL": lambda row: row.receipt.model,
    "TIERS": _used,
}
