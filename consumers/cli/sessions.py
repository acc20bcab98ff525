"""session create|show|context|checkpoints|checkpoint|reset: short-term memory by hand."""

import contextlib
from collections.abc import AsyncIterator
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, check_given, emit, out, run, tenant_of
from turnlog.events.subjects import check_conversation

if TYPE_CHECKING:
    from turnlog.agent.sessions.memory import ShortTermMemory
    from turnlog.agent.sessions.value import MemoryContext, SessionValue

Conversation = Annotated[str, typer.Argument(help="The conversation, which is a thread with a session.")]
READS = ("sessions", "messages")


def register(app: typer.Typer) -> None:
    sessions = typer.Typer(help="Short-term memory: the session of a conversation.", no_args_is_help=True)
    sessions.command()(create)
    sessions.command()(show)
    sessions.command()(context)
    sessions.command()(checkpoints)
    sessions.command()(checkpoint)
    sessions.command()(reset)
    app.add_typer(sessions, name="session")


def create(
    conversation: Conversation,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose; none: of whoever speaks first.")] = None,
    window: Annotated[
        int | None, typer.Option(min=256, help="Tokens of the model's window; MEMORY_SESSION_WINDOW.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Share of it that makes a summary due; MEMORY_TOKEN_THRESHOLD_RATIO."),
    ] = None,
    recent_turns: Annotated[
        int | None, typer.Option(min=0, help="Newest turns that a summary leaves in full; MEMORY_RECENT_TURNS.")
    ] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Begin a session on what was said before. One that is there begins anew, without it."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.sessions.value import MemoryCreateRequest

        check_conversation(conversation)
        check_given("user", user)
        rules = {"token_threshold_ratio": threshold, "recent_turns": recent_turns, "model_context_window": window}
        async with _memory(settings, tenant) as memory:
            request = MemoryCreateRequest(conversation_id=conversation, user_id=user, **rules)
            _show(await memory.create(request), json)
        return 0

    run(work, json)


def show(conversation: Conversation, tenant: Tenant = None, json: Json = False) -> None:
    """The session: mode, summary, newest turns, global state, user."""

    async def work(settings: Settings) -> int:
        async with _memory(settings, tenant) as memory:
            _show(await memory.get(conversation), json)
        return 0

    run(work, json)


def context(
    conversation: Conversation,
    query: Annotated[
        str | None, typer.Option("--query", "-q", help="The question that is asked next; it counts too.")
    ] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """The history as a prompt gets it. Where a summary is due it is asked for, as by an agent."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.sessions.value import MemoryQueryRequest

        check_given("thread", conversation)
        async with _memory(settings, tenant) as memory:
            request = MemoryQueryRequest(conversation_id=conversation, query=query or "")
            found = await memory.query_memory_context(request)
        if json:
            emit(found)
        else:
            out.print(_weight(found), markup=False)
            out.print(found.history or "(no history yet)", markup=False)
        return 0

    run(work, json)


def checkpoints(conversation: Conversation, tenant: Tenant = None, json: Json = False) -> None:
    """Every checkpoint of the session, oldest first."""

    async def work(settings: Settings) -> int:
        async with _memory(settings, tenant) as memory:
            found = await memory.checkpoints(conversation)
        if json:
            emit(found)
        elif not found:
            out.print("no checkpoints: the whole history is in use", markup=False)
        for one in () if json else found:
            head = f"{one.seq:>8}  {one.created_at:%Y-%m-%d %H:%M}  {one.trigger:<9}  {one.turns_covered} turns"
            out.print(f"{head}\n          {' '.join(one.summary.split())}", markup=False)
        return 0

    run(work, json)


def checkpoint(
    conversation: Conversation,
    summary: Annotated[str, typer.Option(help="Stands for every turn before the ones that are kept.")],
    recent_turns: Annotated[
        int | None, typer.Option(min=0, help="Newest turns that stay in full; the session's rule.")
    ] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """End the segment now, with a summary of your own."""

    async def work(settings: Settings) -> int:
        async with _memory(settings, tenant) as memory:
            _show(await memory.checkpoint(conversation, summary, recent_turns), json)
        return 0

    run(work, json)


def reset(conversation: Conversation, tenant: Tenant = None, json: Json = False) -> None:
    """Begin the session anew: earlier turns leave the short-term memory, not the transcript."""

    async def work(settings: Settings) -> int:
        async with _memory(settings, tenant) as memory:
            _show(await memory.reset(conversation), json)
        return 0

    run(work, json)


@contextlib.asynccontextmanager
async def _memory(settings: Settings, tenant: str | None) -> "AsyncIterator[ShortTermMemory]":
    from turnlog.agent.sessions.memory import ShortTermMemory
    from turnlog.consumers.runtime import opened, projecting

    chosen = tenant_of(settings, tenant)
    async with opened(settings) as runtime, projecting(runtime):
        await runtime.settle(names=READS)
        async with ShortTermMemory(runtime.log, runtime.pool, settings, chosen) as memory:
            yield memory


def _weight(found: "MemoryContext") -> str:
    due = ", a summary is due" if found.should_checkpoint_summary else ""
    return f"{found.mode}  {found.estimated_tokens:,} tokens, {found.token_ratio:.0%} of the window{due}"


def _show(value: "SessionValue", as_json: bool) -> None:
    if as_json:
        emit(value)
        return
    flow, messages = value.flow_context, value.message_context
    out.print(f"{value.meta.conversation_id}  user {value.meta.user_id or '-'}  {flow.turn_count} turns", markup=False)
    out.print(f"mode     {messages.mode}  checkpoint {messages.checkpoint_message_id or '-'}", markup=False)
    if flow.current_agent_key:
        out.print(f"agent    {flow.current_agent_key}", markup=False)
    if messages.summary:
        out.print(f"summary  {' '.join(messages.summary.split())}", markup=False)
    for part in (value.global_state, value.user_snapshot):
        for name, told in part.model_dump(mode="json", exclude_defaults=True, exclude={"user_id"}).items():
            words = told if isinstance(told, str) else dumps(told, ensure_ascii=False)
            out.print(f"{name.replace('_', ' ')}: {words}", markup=False)
    for message in messages.window_messages:
        out.print(f"  {message.role:<9} {message.content}", markup=False)
