"""memories (list, show, archive, stats), remember, edit, rate, revert, forget: long-term memory by hand (E 11.5)."""

from datetime import UTC, datetime
from json import loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import BadOption, err
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve
from turnlog.events.contracts import MemoryKind

if TYPE_CHECKING:
    from turnlog.agent.memory.deciding.outcomes import Outcome
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.jobs import DecayStats
    from turnlog.agent.use_cases.memories import MemoryView
    from turnlog.agent.use_cases.memory_changes import Forgotten, Reverted

_WAITING = "{turns} of {user} not read yet: `turnlog up` looks for memories in them, or `turnlog extract --user {user}`"
_SAID = {
    "recorded": "remembered",
    "ended": "remembered, but something else holds in its place",
    "confirmed": "said before",
    "known": "known already",
}


User = Annotated[str, typer.Option("--user", "-u", help="Whose memories.")]
Which = Annotated[
    str, typer.Argument(metavar="MEMORY", help="Its id, the beginning of it, or words that only this memory has.")
]
Kind = Annotated[
    MemoryKind | None,
    typer.Option(case_sensitive=False, metavar="KIND", help="FACT, PREFERENCE, DECISION, SUMMARY or FEEDBACK."),
]
Category = Annotated[str | None, typer.Option(help="Such as the rule of a memory gives it.")]


def register(app: typer.Typer) -> None:
    memories = group(app, "memories", "A user's memories.", listed)
    for command in (show, archive, stats):
        add(memories, command)
    for change in (remember, edit, rate, revert, forget):
        add(app, change)


def listed(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose memories.")] = None,
    as_of: Annotated[str | None, typer.Option(help="Memories valid then: a time, a date or 'last March'.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Ended, waiting, archived and forgotten ones too.")] = False,
    kind: Kind = None,
    category: Category = None,
    min_importance: Annotated[float, typer.Option(min=0, max=1, help="Minimum of the current importance.")] = 0.0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, of those said last.")] = 100,
) -> None:
    """What is remembered of a user, highest score first: score, tier, validity, quote and source."""
    if user is None:
        raise typer.BadParameter("say whose memories", param_hint="--user")
    whose = user

    from turnlog.agent.use_cases.memories import MemoryFilter, list_memories, waiting_turns
    from turnlog.consumers.cli.remembering import memory_lines

    async def use(runtime: "Runtime") -> "list[MemoryView]":
        at = _time(runtime, as_of)
        which = MemoryFilter(() if kind is None else (kind,), category, min_importance, at, every)
        found = await list_memories(runtime, runtime.settings.tenant, whose, which, limit)
        if waiting := await waiting_turns(runtime, runtime.settings.tenant, whose):
            err.print(_WAITING.format(turns=counted(waiting, "turn"), user=whose), markup=False)
        return found

    def lines(found: "list[MemoryView]") -> list[str]:
        return [line for row in found for line in memory_lines(row)] or [f"nothing is remembered of {whose}"]

    serve(use, lines, projecting=False)


def show(
    which: Which,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose; not needed with a whole id.")] = None,
) -> None:
    """A memory's history: every version with its interval and sources."""

    from turnlog.agent.use_cases.memories import memory_history
    from turnlog.consumers.cli.remembering import history_lines

    serve(
        lambda rt: memory_history(rt, rt.settings.tenant, user, which),
        lambda found: history_lines(found.history, found.memory),
        projecting=False,
    )


def archive(
    which: Which, user: User, reason: Annotated[str, typer.Option(help="Why; it is shown with the memory.")]
) -> None:
    """Archive a memory: it is kept and not recalled. `turnlog revert` restores it, and so does saying it again."""

    from turnlog.agent.use_cases.memory_changes import archive_memory

    serve(
        lambda rt: archive_memory(rt, rt.settings.tenant, user, which, reason),
        lambda made: [f"“{made.content}” is archived: {made.reason}"],
    )


def stats(user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None) -> None:
    """How many memories are in which tier, how fresh and important they are, and what the decay job does next."""

    from turnlog.agent.use_cases.jobs import decay_stats

    serve(lambda rt: decay_stats(rt, rt.settings.tenant, user), _stats_lines, projecting=False)


def remember(
    text: Annotated[str, typer.Argument(help="One claim, in the user's words.")],
    user: User,
    kind: Kind = None,
    category: Category = None,
    importance: Annotated[float | None, typer.Option(min=0, max=1, help="Derived from the text when absent.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="When it ends by itself: a time or a date.")] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object to keep with it.")] = None,
) -> None:
    """Write a memory by hand. Extraction rules that read it give it their key, so that it can be contradicted."""

    from turnlog.agent.use_cases.memory_changes import MemoryInput, remember

    async def use(runtime: "Runtime") -> "Outcome":
        about = None if metadata is None else _json(metadata)
        given = MemoryInput(text, kind, category, importance, _time(runtime, expires_at), about)
        return await remember(runtime, runtime.settings.tenant, user, given)

    def lines(made: "Outcome") -> list[str]:
        if made.question:
            return [made.question, f"`turnlog answer new --user {user}`, or old, or both"]
        return [f"{_SAID[made.what]}  {made.memory_id}"]

    serve(use, lines)


def edit(which: Which, text: Annotated[str, typer.Argument(help="The new text.")], user: User) -> None:
    """Store a new version of a memory. The one before stays in the history."""

    from turnlog.agent.use_cases.memory_changes import edit_memory

    serve(
        lambda rt: edit_memory(rt, rt.settings.tenant, user, which, text),
        lambda made: [f"“{made.before}” is now “{text}”  {made.memory}"],
    )


def rate(which: Which, importance: Annotated[float, typer.Argument(help="0 to 1.")], user: User) -> None:
    """Set a memory's importance. Its decay starts again from now."""

    from turnlog.agent.use_cases.memory_changes import rate_memory

    serve(
        lambda rt: rate_memory(rt, rt.settings.tenant, user, which, importance),
        lambda made: [f"“{made.content}” has importance {made.importance:g}"],
    )


def revert(which: Which, user: User, yes: Yes = False) -> None:
    """Make an earlier version valid again; `turnlog memories show` lists their ids. Later changes are undone."""

    from turnlog.agent.use_cases.memories import find_memory
    from turnlog.agent.use_cases.memory_changes import revert_memory

    async def use(runtime: "Runtime") -> "Reverted":
        place = runtime.settings.tenant, user
        row = await find_memory(runtime, *place, which)
        await confirm(f"Let “{row.content}” hold again, and end what took its place?", yes)
        return await revert_memory(runtime, *place, str(row.id))

    serve(use, lambda made: [f"“{made.content}” holds again"], confirmed=yes)


def forget(which: Which, user: User, yes: Yes = False) -> None:
    """Remove a memory, and its duplicates, from what is remembered. It cannot be restored.

    The turn in which it was said stays in its conversation, where messages, recall and exports still have the words:
    `turnlog delete` removes a conversation, `turnlog erase` all of a person.
    """

    from turnlog.agent.use_cases.memories import find_memory, list_memories
    from turnlog.agent.use_cases.memory_changes import forget_memory

    stays: list[str] = []

    async def use(runtime: "Runtime") -> "Forgotten":
        place = runtime.settings.tenant, user
        row = await find_memory(runtime, *place, which)
        await confirm(f"Forget “{row.content}”? It cannot be undone", yes)
        made = await forget_memory(runtime, *place, str(row.id))
        stays.extend(_said_in(row, await list_memories(runtime, *place)))
        return made

    def lines(made: "Forgotten") -> list[str]:
        more = counted(len(made.forgotten) - 1, "version or copy", "versions and copies")
        return [f"forgot 1 memory{'' if len(made.forgotten) == 1 else f' and {more} of it'}", *stays]

    serve(use, lines, confirmed=yes)


def _said_in(forgotten: "MemoryView", held: "list[MemoryView]") -> list[str]:
    """The turns in which a forgotten memory was said, and the memories whose quotes may have its words."""
    if not forgotten.sources:
        return []
    threads = sorted({one.thread for one in forgotten.sources})
    turns = ", ".join(f"{one.thread} #{one.seq}" for one in forgotten.sources)
    events = {one.event_id for one in forgotten.sources}
    sharing = [one for one in held if any(source.event_id in events for source in one.sources)]
    return [
        f"what was said stays, and messages, recall and exports have it: {turns}",
        *(f"“{one.content}” was said there too, and its quote may hold the words" for one in sharing),
        f"`turnlog delete {threads[0]}` removes the conversation, `turnlog erase --user {forgotten.user}` the person",
    ]


def _stats_lines(found: "DecayStats") -> list[str]:
    averages = f"importance {found.average_importance:.2f}, freshness {found.average_freshness:.2f} on average"
    archives = f"archives {found.scheduled_for_archive:,}, deletes {found.scheduled_for_delete:,}"
    return [
        f"{counted(found.total_memories, 'memory', 'memories')}, {found.archived:,} archived; {averages}",
        *(f"  {count:>9,}  {tier}" for tier, count in found.by_tier.items()),
        f"decay on {found.next_due_at:%Y-%m-%d %H:%M} UTC {archives}, ends {found.scheduled_for_expiry:,} that expire",
    ]


def _json(given: str) -> Any:
    try:
        return loads(given)
    except ValueError as error:
        raise BadOption(f"--metadata is not JSON: {error}") from None


def _time(runtime: "Runtime", given: str | None) -> datetime | None:
    from turnlog.consumers.cli.remembering import time_of

    return None if given is None else time_of(given, datetime.now(UTC), runtime.settings.zone)
