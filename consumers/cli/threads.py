"""The commands `threads`, `messages` and `fork`: conversations and their transcripts."""

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from turnlog.agent.answering import turns
from turnlog.agent.conversations import forks, labels, threads
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.counting import counted
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import LAST_SEQ, BadOption, Result
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.rendering import MESSAGE_COLUMNS
from turnlog.consumers.cli.runner import Runtime, command, listed
from turnlog.consumers.cli.text_tables import table
from turnlog.events.errors import NotFound

Thread = Annotated[str, typer.Argument(help="The conversation's id.")]
Label = Annotated[str | None, typer.Option(help="The label that people see.")]

_COLUMNS: dict[str, Callable[["threads.ThreadInfo"], Any]] = {
    "THREAD": lambda thread: thread.thread,
    "USER": lambda thread: thread.user,
    "LAST ACTIVE": lambda thread: thread.last_active_at,
    "MESSAGES": lambda thread: thread.messages,
    "STATE": lambda thread: "archived" if thread.archived else "",
    "LABEL": lambda thread: thread.label if thread.label != thread.thread else "",
}

app = commands()
below = group(app, "threads", "List, open, rename, label and delete conversations.")


@listed(below)
async def list_(
    rt: Runtime,
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000)] = 100,
) -> Result:
    """List conversations, most recently active first."""
    listed_threads = await threads.list_threads(rt, rt.settings.tenant, user, limit)
    none = "no threads yet; `turnlog import FILE` or `turnlog chat` makes the first"
    return table(listed_threads, _COLUMNS, none, _document)


@command(below, "open")
async def open_(
    rt: Runtime,
    thread: Thread,
    user: Annotated[str | None, typer.Option("--user", "-u", help="The user who owns the conversation.")] = None,
    label: Label = None,
) -> Result:
    """Create a conversation without turns. The first turn creates one too.

    A conversation of nobody becomes the user's; its turns stay nobody's. One that has a user keeps it.
    """
    known = None
    with suppress(NotFound):
        known = await threads.get_thread(rt, rt.settings.tenant, thread)
    owner = (known and known.user) or user
    if user not in (None, owner):
        raise BadOption(f"{thread} belongs to {owner}, and a conversation keeps its user")
    await threads.open_thread(rt, rt.settings.tenant, thread, user, label)
    said = f"{{0.thread}} is open and belongs to {'{0.user}' if owner else 'nobody'}"
    if owner and known and known.user is None and known.messages:
        said += f" now; its {counted(known.messages, 'turn')} stay nobody's, so nothing is remembered from them"
    return await _named(rt, thread, said)


@command(below)
async def rename(
    rt: Runtime, thread: Thread, label: Annotated[str, typer.Argument(help="The label that people see.")]
) -> Result:
    """Change a conversation's label. Its id stays."""
    await threads.rename_thread(rt, rt.settings.tenant, thread, label)
    return await _named(rt, thread)


@command(below)
async def label(rt: Runtime, thread: Thread) -> Result:
    """Label a conversation without a label with its user's first words. `turnlog chat` does so by itself."""
    await labels.label_thread(rt, rt.settings.tenant, thread)
    return await _named(rt, thread)


@command(below)
async def delete(rt: Runtime, thread: Thread, yes: Yes = False) -> Result:
    """Remove a conversation from every read model. The log keeps its events; `turnlog erase` erases a person."""
    known = await threads.get_thread(rt, rt.settings.tenant, thread)
    await confirm(f"Delete the conversation {thread} with {counted(known.messages, 'message')}?", yes)
    await threads.delete_thread(rt, rt.settings.tenant, thread)
    return Result({"deleted": thread, "messages": known.messages}, f"{thread} is deleted")


@command(app, projecting=False)
async def messages(
    rt: Runtime, thread: Thread, limit: Annotated[int | None, typer.Option(min=1, help="Only the newest.")] = None
) -> Result:
    """Show a thread's transcript, oldest first."""
    place = (rt.settings.tenant, thread)
    page = await transcript(rt, *place, limit=limit or LAST_SEQ - 1, newest=limit is not None)
    return table([turns.shown(turn) for turn in page.turns], MESSAGE_COLUMNS)


@command(app)
async def fork(
    rt: Runtime,
    thread: Thread,
    at: Annotated[int, typer.Option(min=1, help="The last sequence of the log that the new thread shares.")],
    new_id: Annotated[str | None, typer.Option("--as", help="Id of the new thread. Default: generated.")] = None,
    label: Label = None,
) -> Result:
    """Start a new thread from any event of a thread, without copying its past."""
    made = await forks.fork_thread(rt, rt.settings.tenant, thread, at, new_id, label)
    return Result(made, f"{made.thread} begins with {counted(made.message_count, 'message')} of {made.parent}")


async def _named(rt: Runtime, thread: str, said: str = "{0.thread} is named {0.label}") -> Result:
    now = await threads.get_thread(rt, rt.settings.tenant, thread)
    return Result(_document(now), said.format(now))


def _document(thread: "threads.ThreadInfo") -> dict[str, Any]:
    return {
        "thread_id": thread.thread,
        "label": thread.label,
        "user_id": thread.user,
        "message_count": thread.messages,
        "last_active_at": thread.last_active_at,
        "archived": thread.archived,
    }
