"""threads, messages, context, recall: what the read models hold and what a model would see."""

from pathlib import Path
from typing import Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, check_given, emit, out, run, tenant_of
from turnlog.events.errors import NotFound


def register(app: typer.Typer) -> None:
    app.command()(threads)
    app.command()(messages)
    app.command()(context)
    app.command()(recall)


def threads(
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000)] = 100,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Conversations, most recently active first."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened, projecting
        from turnlog.projectors.archive_lookup import archived_threads
        from turnlog.projectors.thread_activity import list_threads

        check_given("user", user)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("thread_activity", "archives"))
            async with runtime.pool.connection() as conn:
                archived = set(await archived_threads(conn, tenant_of(settings, tenant)))
                found = await list_threads(conn, tenant_of(settings, tenant), user, limit)
        rows = [{**row, "archived": row["thread_id"] in archived} for row in found]
        if json:
            emit(rows)
        elif not rows:
            out.print("no threads yet; `turnlog import FILE` or `turnlog chat` makes the first")
        for row in () if json else rows:
            out.print(
                f"{row['last_active_at']:%Y-%m-%d %H:%M}  {row['message_count']:>7,}  {row['thread_id']}"
                + (f"  ({row['label']})" if row["label"] and row["label"] != row["thread_id"] else "")
                + ("  archived" if row["archived"] else ""),
                markup=False,
            )
        return 0

    run(work, json)


def messages(
    thread: Annotated[str, typer.Argument()],
    limit: Annotated[int | None, typer.Option(min=1, help="Only the newest.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """A thread's transcript, oldest first."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.archiving import restored_if_archived
        from turnlog.consumers.rendering import message_line
        from turnlog.consumers.runtime import opened, projecting
        from turnlog.projectors.messages import thread_messages

        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("messages", "archives"))
            async with runtime.pool.connection() as conn:
                await restored_if_archived(runtime, conn, tenant_of(settings, tenant), thread)
                rows = await thread_messages(conn, tenant_of(settings, tenant), thread)
        if not rows:
            raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
        rows = rows[-limit:] if limit else rows
        if json:
            emit(rows)
        for row in () if json else rows:
            out.print(message_line(row), markup=False)
        return 0

    run(work, json)


def context(
    thread: Annotated[str, typer.Argument()],
    query: Annotated[str | None, typer.Option(help="A user message to put at the end.")] = None,
    window: Annotated[int | None, typer.Option(min=256, help="Context window in tokens.")] = None,
    hybrid: Annotated[bool, typer.Option(help="Where not all fits, turns relevant to the query come first.")] = False,
    as_of: Annotated[int | None, typer.Option(min=1, help="Of that moment: a sequence of the log.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """What a model would see of a thread now, or saw then: tiers with their tokens, and the messages."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.receipts import rebuilt
        from turnlog.agent.threads import thread_context
        from turnlog.consumers import rendering
        from turnlog.consumers.archiving import restored_if_archived
        from turnlog.consumers.recalling import hybrid_turns
        from turnlog.consumers.runtime import opened, projecting

        place = (tenant_of(settings, tenant), thread)
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("messages", "checkpoints", "summaries", "topics", "vectors", "archives"))
            async with runtime.pool.connection() as conn:
                await restored_if_archived(runtime, conn, *place)
                relevant = await hybrid_turns(conn, settings, place, query, as_of) if hybrid else []
                if as_of is None:
                    found = await thread_context(conn, settings, *place, query=query, window=window, relevant=relevant)
                    document, lines = rendering.context_document(found), rendering.context_lines(found)
                else:
                    past = await rebuilt(conn, runtime.log, settings, *place, as_of, query=query, window=window)
                    document, lines = rendering.past_document(past, as_of), rendering.past_lines(past, as_of)
        if json:
            emit(document)
        for line in () if json else lines:
            out.print(line, markup=False)
        return 0

    run(work, json)


def recall(
    query: Annotated[str | None, typer.Argument(help="What to look for.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", "-t")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="All threads of a user, and their memories.")] = None,
    k: Annotated[int | None, typer.Option("-k", min=1, max=1000, help="How many of each; MEMORY_RECALL_TOP_K.")] = None,
    explain: Annotated[bool, typer.Option(help="Show the parts of each score.")] = False,
    batch: Annotated[
        Path | None, typer.Option(help='JSON lines {"query","thread","k"}; answers as JSON lines.')
    ] = None,
    keyword_only: Annotated[bool, typer.Option(help="Leave vectors out.")] = False,
    as_of: Annotated[
        str | None, typer.Option(help="Only memories, those that held then: a time, a date or 'last March'.")
    ] = None,
    past: Annotated[bool, typer.Option("--history", help="Memories that ended too.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of all that is shown, at most.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Find what was said, and with a user what is remembered of them, by meaning, words, names and dates."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.recalling import RecallCommand, recall_batch
        from turnlog.consumers.recalling_memories import MemoryChoice
        from turnlog.consumers.recalling_once import recall_once

        command = RecallCommand(tenant_of(settings, tenant), thread, user, k or settings.recall_top_k, keyword_only)
        if batch is not None:
            return await recall_batch(settings, command, batch)
        choice = MemoryChoice(as_of, past, max_tokens)
        return await recall_once(settings, command, query, choice, explain, json)

    run(work, json)
