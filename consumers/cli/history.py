"""receipts and fork: what the model saw for each answer of a thread, and a new thread from any of its events."""

import uuid
from typing import Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, emit, out, run, tenant_of
from turnlog.events.subjects import check_conversation


def register(app: typer.Typer) -> None:
    app.command()(receipts)
    app.command()(fork)


def receipts(thread: Annotated[str, typer.Argument()], tenant: Tenant = None, json: Json = False) -> None:
    """What the model saw for each answer of a thread; `turnlog context THREAD --as-of SEQ` shows it in full."""

    async def work(settings: Settings) -> int:
        from turnlog.agent import receipts as stored
        from turnlog.consumers.rendering import receipt_document, receipt_line
        from turnlog.consumers.runtime import opened, projecting
        from turnlog.events.errors import NotFound

        place = (tenant_of(settings, tenant), thread)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("messages",))
            if not await runtime.log.thread_head(*place):
                raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
            async with runtime.pool.connection() as conn:
                found = await stored.receipts(conn, runtime.log, *place)
        if json:
            emit([receipt_document(*one) for one in found])
        elif not found:
            out.print("no answer was made in this thread yet", markup=False)
        for one in () if json else found:
            out.print(receipt_line(*one), markup=False)
        return 0

    run(work, json)


def fork(
    thread: Annotated[str, typer.Argument()],
    at: Annotated[int, typer.Option(min=1, help="The last sequence of the log that the new thread begins with.")],
    new_id: Annotated[str | None, typer.Option("--as", help="Id of the new thread; made up when not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Its name for people.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Start a new thread from any event of a thread, without copying its past."""

    async def work(settings: Settings) -> int:
        from turnlog.agent import forking
        from turnlog.consumers.archiving import restored_if_archived
        from turnlog.consumers.runtime import opened, projecting

        target = f"{thread}-fork-{uuid.uuid4().hex[:8]}" if new_id is None else check_conversation(new_id)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("messages", "archives"))
            async with runtime.pool.connection() as conn:
                await restored_if_archived(runtime, conn, tenant_of(settings, tenant), thread)
                made = await forking.fork(
                    conn, runtime.log, tenant_of(settings, tenant), thread, at, target, label or None
                )
            await runtime.settle()
        if json:
            emit(made)
        else:
            out.print(f"{made.thread} begins with {made.message_count:,} messages of {made.parent}", markup=False)
        return 0

    run(work, json)
