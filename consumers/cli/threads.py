"""threads, messages, fork: conversations and their transcripts."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.threads import ThreadInfo
    from turnlog.agent.use_cases.turns import ShownTurn

Thread = Annotated[str, typer.Argument(help="The conversation's id.")]


def register(app: typer.Typer) -> None:
    threads = group(app, "threads", "List conversations, open, rename, label and delete them.", listed)
    add(threads, open_, "open")
    for command in (rename, label, delete):
        add(threads, command)
    add(app, messages)
    add(app, fork)


def listed(
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000)] = 100,
) -> None:
    """Conversations, most recently active first."""
    from turnlog.agent.use_cases.threads import list_threads

    serve(
        lambda rt: list_threads(rt, rt.settings.tenant, user, limit),
        _lines,
        document=lambda found: [_document(one) for one in found],
        projecting=False,
    )


def open_(
    thread: Thread,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose conversation it is.")] = None,
    label: Annotated[str | None, typer.Option(help="Its name for people.")] = None,
) -> None:
    """Create a conversation without turns. The first turn creates one too."""
    from turnlog.agent.use_cases.threads import get_thread, open_thread

    async def use(runtime: "Runtime") -> "ThreadInfo":
        place = (runtime.settings.tenant, thread)
        await open_thread(runtime, *place, user, label)
        return await get_thread(runtime, *place)

    serve(use, lambda made: [f"{made.thread} is open"], document=_document)


def rename(thread: Thread, label: Annotated[str, typer.Argument(help="Its name for people.")]) -> None:
    """Change a conversation's label. Its id stays."""
    from turnlog.agent.use_cases.threads import get_thread, rename_thread

    async def use(runtime: "Runtime") -> "ThreadInfo":
        place = (runtime.settings.tenant, thread)
        await rename_thread(runtime, *place, label)
        return await get_thread(runtime, *place)

    serve(use, lambda now: [f"{now.thread} is named {now.label}"], document=_document)


def label(thread: Thread) -> None:
    """Label a conversation that has no label by what its user said first. `turnlog chat` does so by itself."""
    from turnlog.agent.use_cases.threads import get_thread, label_thread

    async def use(runtime: "Runtime") -> "ThreadInfo":
        place = (runtime.settings.tenant, thread)
        await label_thread(runtime, *place)
        return await get_thread(runtime, *place)

    serve(use, lambda now: [f"{now.thread} is named {now.label}"], document=_document)


def delete(thread: Thread, yes: Yes = False) -> None:
    """Remove a conversation from every read model. The log keeps its events; `turnlog erase` erases a person."""
    from turnlog.agent.use_cases.threads import delete_thread, get_thread

    async def use(runtime: "Runtime") -> dict[str, Any]:
        place = (runtime.settings.tenant, thread)
        known = await get_thread(runtime, *place)
        await confirm(f"Delete the conversation {thread} with {counted(known.messages, 'message')}?", yes)
        await delete_thread(runtime, *place)
        return {"deleted": thread, "messages": known.messages}

    serve(use, lambda _: [f"{thread} is deleted"], confirmed=yes)


def messages(thread: Thread, limit: Annotated[int | None, typer.Option(min=1, help="Only the newest.")] = None) -> None:
    """A thread's transcript, oldest first."""
    from turnlog.agent.use_cases.turns import shown, transcript
    from turnlog.consumers.cli.console import LAST_SEQ
    from turnlog.consumers.cli.rendering import message_line

    async def use(runtime: "Runtime") -> "list[ShownTurn]":
        place = (runtime.settings.tenant, thread)
        page = await transcript(runtime, *place, limit=limit or LAST_SEQ - 1, newest=limit is not None)
        return [shown(turn) for turn in page.turns]

    serve(use, lambda turns: map(message_line, turns), projecting=False)


def fork(
    thread: Thread,
    at: Annotated[int, typer.Option(min=1, help="The last sequence of the log that the new thread begins with.")],
    new_id: Annotated[str | None, typer.Option("--as", help="Id of the new thread; generated when not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Its name for people.")] = None,
) -> None:
    """Start a new thread from any event of a thread, without copying its past."""
    from turnlog.agent.use_cases.forks import fork_thread

    serve(
        lambda rt: fork_thread(rt, rt.settings.tenant, thread, at, new_id, label),
        lambda made: [f"{made.thread} begins with {counted(made.message_count, 'message')} of {made.parent}"],
    )


def _lines(found: "Sequence[ThreadInfo]") -> Iterator[str]:
    if not found:
        yield "no threads yet; `turnlog import FILE` or `turnlog chat` makes the first"
    for one in found:
        label = f"  ({one.label})" if one.label and one.label != one.thread else ""
        archived = "  archived" if one.archived else ""
        yield f"{one.last_active_at:%Y-%m-%d %H:%M}  {one.messages:>7,}  {one.thread}{label}{archived}"


def _document(one: "ThreadInfo") -> dict[str, Any]:
    return {
        "thread_id": one.thread,
        "label": one.label,
        "user_id": one.user,
        "message_count": one.messages,
        "last_active_at": one.last_active_at,
        "archived": one.archived,
    }
