"""The commands `memories`, `remember`, `edit`, `rate`, `revert` and `forget`: long-term memory by hand."""

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.agent.memory import memories, memory_changes
from turnlog.agent.operations.jobs import job_states
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import Result, json_object, warn
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.remembering import User, history_lines, memory_text, time_of
from turnlog.consumers.cli.runner import Runtime, command, listed
from turnlog.consumers.cli.text_tables import short_ids, table
from turnlog.events.contracts import MemoryKind

_WAITING = "{turns} of {user} not read yet: `turnlog up` looks for memories in them, or `turnlog extract --user {user}`"
_SAID = {
    "recorded": "remembered",
    "ended": "remembered, but another memory replaces it",
    "confirmed": "said before",
    "known": "known already",
}

Which = Annotated[
    str,
    typer.Argument(metavar="MEMORY", help="Its id, the beginning of its id, or words that only this memory contains."),
]
Kind = Annotated[
    MemoryKind | None,
    typer.Option(case_sensitive=False, metavar="KIND", help="FACT, PREFERENCE, DECISION, SUMMARY or FEEDBACK."),
]
Category = Annotated[str | None, typer.Option(help="Category as extraction rules give it.")]


app = commands()
below = group(app, "memories", "A user's memories.")


def _named(user: str | None) -> None:
    if user is None:
        raise typer.BadParameter("say whose memories", param_hint="--user")


@listed(below, checks=_named)
async def list_(
    rt: Runtime,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose memories.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Memories valid at this time: a time, a date or 'last March'.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include memories that ended, wait for a decision, are archived or forgotten.")
    ] = False,
    kind: Kind = None,
    category: Category = None,
    min_importance: Annotated[float, typer.Option(min=0, max=1, help="Minimum current importance.")] = 0.0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, most recently said first.")] = 100,
) -> Result:
    """List what is remembered about a user, highest score first: score, tier, validity, quote and source."""
    whose = (rt.settings.tenant, user or "")
    at = _time(rt, as_of)
    which = memories.MemoryFilter(() if kind is None else (kind,), category, min_importance, at, every)
    held = await memories.list_memories(rt, *whose, which, limit)
    if waiting := await memories.waiting_turns(rt, *whose):
        warn(_WAITING.format(turns=counted(waiting, "turn"), user=user))
    ids = short_ids(row.id for row in held)
    columns: dict[str, Callable[[memories.MemoryView], Any]] = {
        "ID": lambda row: ids[row.id],
        "KIND": lambda row: row.kind,
        "SCORE": lambda row: f"{row.score.total:.2f}",
        "TIER": lambda row: row.score.tier,
        "MEMORY": memory_text,
    }
    return table(held, columns, f"nothing is remembered about {user}")


@command(below, projecting=False)
async def show(
    rt: Runtime,
    which: Which,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Its user; not needed with a whole id.")] = None,
) -> Result:
    """Show a memory's history: every version with its validity and sources."""
    memory = await memories.memory_history(rt, rt.settings.tenant, user, which)
    return Result(memory, history_lines(memory.history, memory.memory))


@command(below)
async def archive(
    rt: Runtime,
    which: Which,
    user: User,
    reason: Annotated[str, typer.Option(help="Reason, shown with the memory.")],
) -> Result:
    """Archive a memory: it is kept, but not recalled. `turnlog revert` restores it, and so does saying it again."""
    made = await memory_changes.archive_memory(rt, rt.settings.tenant, user, which, reason)
    return Result(made, f"“{made.content}” is archived: {made.reason}")


@command(below, projecting=False)
async def stats(
    rt: Runtime, user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None
) -> Result:
    """Show how many memories are in each tier, how fresh and important they are, and what the decay job does next."""
    decay = await job_states.decay_stats(rt, rt.settings.tenant, user)
    return Result(decay, _stats_lines(decay))


@command(app)
async def remember(
    rt: Runtime,
    text: Annotated[str, typer.Argument(help="One claim, in the user's words.")],
    user: User,
    kind: Kind = None,
    category: Category = None,
    importance: Annotated[float | None, typer.Option(min=0, max=1, help="Default: derived from the text.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="When it expires: a time or a date.")] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object to store with it.")] = None,
) -> Result:
    """Write a memory by hand. If extraction rules recognise it, it gets their key, so that later statements can
    contradict it.
    """
    about = json_object("--metadata", metadata)
    memory = memory_changes.MemoryInput(text, kind, category, importance, _time(rt, expires_at), about)
    made = await memory_changes.remember(rt, rt.settings.tenant, user, memory)
    if made.question:
        return Result(made, [made.question, f"`turnlog answer new --user {user}`, or old, or both"])
    return Result(made, f"{_SAID[made.what]}  {made.memory_id}")


@command(app)
async def edit(
    rt: Runtime, which: Which, text: Annotated[str, typer.Argument(help="The new text.")], user: User
) -> Result:
    """Store a new version of a memory. The version before stays in the history."""
    made = await memory_changes.edit_memory(rt, rt.settings.tenant, user, which, text)
    return Result(made, f"“{made.before}” is now “{text}”  {made.memory}")


@command(app)
async def rate(
    rt: Runtime, which: Which, importance: Annotated[float, typer.Argument(help="0 to 1.")], user: User
) -> Result:
    """Set a memory's importance. Its decay starts again from now."""
    made = await memory_changes.rate_memory(rt, rt.settings.tenant, user, which, importance)
    return Result(made, f"“{made.content}” has importance {made.importance:g}")


@command(app)
async def revert(rt: Runtime, which: Which, user: User, yes: Yes = False) -> Result:
    """Make an earlier version valid again; `turnlog memories show` lists the ids. Later changes are undone."""
    row = await memories.find_memory(rt, rt.settings.tenant, user, which)
    await confirm(f"Let “{row.content}” be valid again, and end what replaced it?", yes)
    made = await memory_changes.revert_memory(rt, rt.settings.tenant, user, str(row.id))
    return Result(made, f"“{made.content}” holds again")


@command(app)
async def forget(rt: Runtime, which: Which, user: User, yes: Yes = False) -> Result:
    """Forget a memory and its duplicates; a newer version of it stays. They cannot be restored.

    The turn in which it was said stays in its conversation, and its words still reach the model with the history:
    `turnlog redact` strikes them, `turnlog threads delete` removes a conversation, `turnlog erase` all of a person.
    """
    owner = (rt.settings.tenant, user)
    row = await memories.find_memory(rt, *owner, which)
    await confirm(f"Forget “{row.content}”? It cannot be undone", yes)
    made = await memory_changes.forget_memory(rt, *owner, str(row.id))
    more = counted(len(made.forgotten) - 1, "version or copy", "versions and copies")
    forgot = f"forgot 1 memory{'' if len(made.forgotten) == 1 else f' and {more} of it'}"
    lines = [forgot, *_said_in(row, await memories.list_memories(rt, *owner))]
    if made.newer is not None:
        newer = await memories.find_memory(rt, *owner, str(made.newer))
        command_line = f"`turnlog forget {newer.id} --user {shlex.quote(user)}`"
        lines.insert(1, f"a newer version stays: “{newer.content}”; {command_line} forgets it too")
    return Result(made, lines)


def _said_in(forgotten: "memories.MemoryView", held: "list[memories.MemoryView]") -> list[str]:
    """Returns the turns in which a forgotten memory was said, and the memories whose quotes may contain its words."""
    if not forgotten.sources:
        return []
    threads = sorted({source.thread for source in forgotten.sources})
    turns = ", ".join(f"{source.thread} #{source.seq}" for source in forgotten.sources)
    events = {source.event_id for source in forgotten.sources}
    sharing = [memory for memory in held if any(source.event_id in events for source in memory.sources)]
    return [
        f"what was said stays, and reaches the model with the history, recall and exports: {turns}",
        *(f"“{memory.content}” was said there too, and its quote may hold the words" for memory in sharing),
        f"`turnlog redact {forgotten.sources[0].thread} {forgotten.sources[0].seq} --words …` strikes its words, "
        f"`turnlog threads delete {threads[0]}` removes the conversation, "
        f"`turnlog erase --user {forgotten.user}` the person",
    ]


def _stats_lines(decay: "job_states.DecayStats") -> list[str]:
    averages = f"importance {decay.average_importance:.2f}, freshness {decay.average_freshness:.2f} on average"
    archives = f"archives {decay.scheduled_for_archive:,}, deletes {decay.scheduled_for_delete:,}"
    return [
        f"{counted(decay.total_memories, 'memory', 'memories')}, {decay.archived:,} archived; {averages}",
        *(f"  {count:>9,}  {tier}" for tier, count in decay.by_tier.items()),
        f"decay on {decay.next_due_at:%Y-%m-%d %H:%M} UTC {archives}, ends {decay.scheduled_for_expiry:,} that expire",
    ]


def _time(rt: Runtime, text: str | None) -> datetime | None:
    return None if text is None else time_of(text, datetime.now(UTC), rt.settings.zone)
