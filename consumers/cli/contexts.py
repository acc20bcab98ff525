"""context and receipts: what a model sees of a thread now, and what it saw for each answer."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.consumers.cli.console import err
from turnlog.consumers.cli.options import add
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.threads.receipts import RebuiltContext
    from turnlog.agent.use_cases.context import Prepared, ReceiptFound

Thread = Annotated[str, typer.Argument()]


def register(app: typer.Typer) -> None:
    add(app, context)
    add(app, receipts)


def context(
    thread: Thread,
    query: Annotated[str | None, typer.Option(help="A user message to put at the end.")] = None,
    window: Annotated[int | None, typer.Option(min=256, help="Context window in tokens.")] = None,
    hybrid: Annotated[
        bool | None,
        typer.Option(
            "--hybrid/--no-hybrid",
            help="Where not all fits, turns relevant to the question come first.",
            show_default="unless MEMORY_HYBRID_EPISODES is 0",
        ),
    ] = None,
    as_of: Annotated[int | None, typer.Option(min=1, help="As of this sequence of the log.")] = None,
) -> None:
    """What a model would see of a thread now, or saw at --as-of: tiers with their tokens, and the messages."""
    from turnlog.agent.use_cases.context import context_as_of, context_of
    from turnlog.agent.use_cases.recall import BadQuery
    from turnlog.consumers.cli.rendering import context_lines, past_document, past_lines

    async def now(runtime: "Runtime") -> "Prepared":
        place = (runtime.settings.tenant, thread)
        found = await context_of(runtime, *place, query=query, window=window, hybrid=hybrid)
        if found.degraded:
            err.print(found.degraded, markup=False)
        return found

    async def then(runtime: "Runtime") -> "RebuiltContext":
        if hybrid:
            raise BadQuery("--hybrid shows a thread as it is now, without --as-of")
        place = (runtime.settings.tenant, thread)
        return await context_as_of(runtime, *place, as_of or 0, query=query, window=window)

    if as_of is None:
        serve(
            now,
            lambda found: context_lines(found.context),
            document=lambda found: found.context.as_json(),
            projecting=False,
        )
    else:
        serve(
            then,
            lambda past: past_lines(past, as_of),
            document=lambda past: past_document(past, as_of),
            projecting=False,
        )


def receipts(thread: Thread) -> None:
    """What the model saw for each answer of a thread; `turnlog context THREAD --as-of SEQ` shows it in full."""
    from turnlog.agent.use_cases.context import list_receipts

    serve(
        lambda rt: list_receipts(rt, rt.settings.tenant, thread),
        lambda found: map(_receipt_line, found) if found else ["no answer was made in this thread yet"],
        document=lambda found: [_receipt_document(one) for one in found],
        projecting=False,
    )


def _receipt_document(one: "ReceiptFound") -> dict[str, Any]:
    """The receipt as stored, with the sequence, thread and time of its event."""
    return {"seq": one.seq, "thread": one.thread, "time": one.time} | one.receipt.model_dump(mode="json")


def _receipt_line(one: "ReceiptFound") -> str:
    receipt = one.receipt
    tiers = ", ".join(f"{'all' if t.tier == 'all' else f'tier {t.tier}'} {t.tokens:,}" for t in receipt.tiers)
    dropped = f"  {receipt.dropped.count:,} left out" if receipt.dropped.count else ""
    used = f"{tiers} of {receipt.budget:,} tokens{dropped}"
    return f"{receipt.as_of_seq:>8}  {one.time:%Y-%m-%d %H:%M}  {receipt.model:<20} {used}"
