"""session create|show|context|checkpoints|checkpoint|reset: short-term memory by hand."""

from collections.abc import Iterator, Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.sessions.value import MemoryContext, SessionValue
    from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint

Conversation = Annotated[str, typer.Argument(help="The conversation, which is a thread with a session.")]


def register(app: typer.Typer) -> None:
    session = group(app, "session", "Short-term memory: the session of a conversation.")
    for command in (create, show, context, checkpoints, checkpoint, reset):
        add(session, command)


def create(
    conversation: Conversation,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Owner; default: the first speaker.")] = None,
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
) -> None:
    """Begin a session over the conversation so far. An existing session begins again, without earlier turns."""
    from turnlog.agent.use_cases.sessions import create_session

    serve(
        lambda rt: create_session(
            rt, rt.settings.tenant, conversation, user, window=window, threshold=threshold, recent_turns=recent_turns
        ),
        _session_lines,
    )


def show(conversation: Conversation) -> None:
    """The session: mode, summary, newest turns, global state, user."""
    from turnlog.agent.use_cases.sessions import show_session

    serve(lambda rt: show_session(rt, rt.settings.tenant, conversation), _session_lines, projecting=False)


def context(
    conversation: Conversation,
    query: Annotated[str | None, typer.Option("--query", "-q", help="The next question, which counts too.")] = None,
) -> None:
    """The history for a prompt. Requests a summary if one is due, as an agent does."""
    from turnlog.agent.use_cases.sessions import session_context

    serve(
        lambda rt: session_context(rt, rt.settings.tenant, conversation, query or ""),
        lambda found: [_weight(found), found.history or "(no history yet)"],
    )


def checkpoints(conversation: Conversation) -> None:
    """Every checkpoint of the session, oldest first."""
    from turnlog.agent.use_cases.sessions import list_checkpoints

    serve(lambda rt: list_checkpoints(rt, rt.settings.tenant, conversation), _checkpoint_lines, projecting=False)


def checkpoint(
    conversation: Conversation,
    summary: Annotated[str, typer.Option(help="Summary of every turn before the kept ones.")],
    recent_turns: Annotated[
        int | None, typer.Option(min=0, help="Newest turns that stay in full; the session's rule.")
    ] = None,
) -> None:
    """End the segment now, with a summary of your own."""
    from turnlog.agent.use_cases.sessions import write_checkpoint

    serve(lambda rt: write_checkpoint(rt, rt.settings.tenant, conversation, summary, recent_turns), _session_lines)


def reset(conversation: Conversation) -> None:
    """Begin the session again: earlier turns leave the short-term memory, not the transcript."""
    from turnlog.agent.use_cases.sessions import reset_session

    serve(lambda rt: reset_session(rt, rt.settings.tenant, conversation), _session_lines)


def _checkpoint_lines(found: "Sequence[SegmentCheckpoint]") -> Iterator[str]:
    if not found:
        yield "no checkpoints: the whole history is in use"
    for one in found:
        yield f"{one.seq:>8}  {one.created_at:%Y-%m-%d %H:%M}  {one.trigger:<9}  {counted(one.turns_covered, 'turn')}"
        yield f"          {' '.join(one.summary.split())}"


def _weight(found: "MemoryContext") -> str:
    due = ", a summary is due" if found.should_checkpoint_summary else ""
    return f"{found.mode}  {counted(found.estimated_tokens, 'token')}, {found.token_ratio:.0%} of the window{due}"


def _session_lines(value: "SessionValue") -> Iterator[str]:
    flow, messages = value.flow_context, value.message_context
    yield f"{value.meta.conversation_id}  user {value.meta.user_id or '-'}  {counted(flow.turn_count, 'turn')}"
    yield f"mode     {messages.mode}  checkpoint {messages.checkpoint_message_id or '-'}"
    if flow.current_agent_key:
        yield f"agent    {flow.current_agent_key}"
    if messages.summary:
        yield f"summary  {' '.join(messages.summary.split())}"
    for part in (value.global_state, value.user_snapshot):
        for name, given in part.model_dump(mode="json", exclude_defaults=True, exclude={"user_id"}).items():
            text = given if isinstance(given, str) else dumps(given, ensure_ascii=False)
            yield f"{name.replace('_', ' ')}: {text}"
    for message in messages.window_messages:
        yield f"  {message.name or message.origin or message.role:<9} {message.content}"
