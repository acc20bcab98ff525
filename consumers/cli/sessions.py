"""The commands `session`: short-term memory by hand."""

from collections.abc import Iterator
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.conversations.sessions import session_calls
from turnlog.agent.counting import counted
from turnlog.consumers.cli.console import BadOption, Result, json_object, rows
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command

if TYPE_CHECKING:
    from turnlog.agent.conversations.sessions.value import SessionValue
    from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint

Conversation = Annotated[str, typer.Argument(help="The conversation, which is a thread with a session.")]

app = commands()
below = group(app, "session", "Short-term memory: the session of a conversation.")


@command(below)
async def create(
    rt: Runtime,
    conversation: Conversation,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Owner. Default: the first speaker.")] = None,
    window: Annotated[
        int | None, typer.Option(min=256, help="Size of the model's window in tokens. Default: MEMORY_SESSION_WINDOW.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of the window from which a summary is due. Default: MEMORY_TOKEN_THRESHOLD_RATIO.",
        ),
    ] = None,
    recent_turns: Annotated[
        int | None,
        typer.Option(min=0, help="Number of newest turns that a summary leaves in full. Default: MEMORY_RECENT_TURNS."),
    ] = None,
) -> Result:
    """Begin a session on the conversation so far. An existing session begins again, without earlier turns."""
    return _session(
        await session_calls.create_session(
            rt, rt.settings.tenant, conversation, user, window=window, threshold=threshold, recent_turns=recent_turns
        )
    )


@command(below, projecting=False)
async def show(rt: Runtime, conversation: Conversation) -> Result:
    """Show the session: mode, summary, newest turns, global state and user."""
    return _session(await session_calls.show_session(rt, rt.settings.tenant, conversation))


@command(below)
async def context(
    rt: Runtime,
    conversation: Conversation,
    query: Annotated[str | None, typer.Option("--query", "-q", help="The next question; its tokens count too.")] = None,
) -> Result:
    """Show the history as a prompt gets it. Requests a summary if one is due, as an agent does."""
    session = await session_calls.session_context(rt, rt.settings.tenant, conversation, query or "")
    due = ", a summary is due" if session.should_checkpoint_summary else ""
    tokens = f"{counted(session.estimated_tokens, 'token')}, {session.token_ratio:.0%} of the window{due}"
    return Result(session, [f"{session.mode}  {tokens}", session.history or "(no history yet)"])


@command(below, "set")
async def change(
    rt: Runtime,
    conversation: Conversation,
    agent: Annotated[str | None, typer.Option(help="The current agent.")] = None,
    intent: Annotated[str | None, typer.Option(help="The user's intent; '' for none.")] = None,
    pending: Annotated[
        str | None, typer.Option(help="The action that awaits the user's confirmation: a JSON object, or null.")
    ] = None,
    slots: Annotated[str | None, typer.Option(help='Slots of agents: \'{"booking": {"city": "Oslo"}}\'.')] = None,
    snapshot: Annotated[str | None, typer.Option(help="What is known about the user: a JSON object.")] = None,
) -> Result:
    """Change the session's agent, intent, pending action, slots, or what it knows about the user. Objects are merged
    with the stored ones; null removes a key."""
    state = {"current_intent": intent, "agent_slots": json_object("--slots", slots)}
    changed: dict[str, Any] = {name: value for name, value in state.items() if value is not None}
    if pending is not None:
        changed["pending_action"] = json_object("--pending", pending)
    changes = session_calls.SessionChanges(
        current_agent_key=agent, global_state=changed or None, user_snapshot=json_object("--snapshot", snapshot)
    )
    if changes == session_calls.SessionChanges():
        raise BadOption("give what to change, such as --intent TEXT; --help lists the options")
    return _session(await session_calls.change_session(rt, rt.settings.tenant, conversation, changes))


@command(below, projecting=False)
async def checkpoints(rt: Runtime, conversation: Conversation) -> Result:
    """List the checkpoints of the session, oldest first."""
    listed = await session_calls.list_checkpoints(rt, rt.settings.tenant, conversation)
    return rows(listed, _checkpoint_lines, "no checkpoints: the whole history is in use")


@command(below)
async def checkpoint(
    rt: Runtime,
    conversation: Conversation,
    summary: Annotated[str, typer.Option(help="Summary of all turns before the kept ones.")],
    recent_turns: Annotated[
        int | None, typer.Option(min=0, help="Number of newest turns that stay in full. Default: the session's rule.")
    ] = None,
) -> Result:
    """End the segment now, with your own summary."""
    place = (rt.settings.tenant, conversation)
    return _session(await session_calls.write_checkpoint(rt, *place, summary, recent_turns))


@command(below)
async def reset(rt: Runtime, conversation: Conversation) -> Result:
    """Begin the session again: earlier turns leave the short-term memory, but stay in the transcript."""
    return _session(await session_calls.reset_session(rt, rt.settings.tenant, conversation))


def _checkpoint_lines(checkpoint: "SegmentCheckpoint") -> Iterator[str]:
    covered = counted(checkpoint.turns_covered, "turn")
    yield f"{checkpoint.seq:>8}  {checkpoint.created_at:%Y-%m-%d %H:%M}  {checkpoint.trigger:<9}  {covered}"
    yield f"          {' '.join(checkpoint.summary.split())}"


def _session(value: "SessionValue") -> Result:
    return Result(value, _session_lines(value))


def _session_lines(value: "SessionValue") -> Iterator[str]:
    flow, messages = value.flow_context, value.message_context
    yield f"{value.meta.conversation_id}  user {value.meta.user_id or '-'}  {counted(flow.turn_count, 'turn')}"
    yield f"mode     {messages.mode}  checkpoint {messages.checkpoint_message_id or '-'}"
    if flow.current_agent_key:
        yield f"agent    {flow.current_agent_key}"
    if messages.summary:
        yield f"summary  {' '.join(messages.summary.split())}"
    for part in (value.global_state, value.user_snapshot):
        for name, field in part.model_dump(mode="json", exclude_defaults=True, exclude={"user_id"}).items():
            text = field if isinstance(field, str) else dumps(field, ensure_ascii=False)
            yield f"{name.replace('_', ' ')}: {text}"
    for message in messages.window_messages:
        yield f"  {message.name or message.origin or message.role:<9} {message.content}"
