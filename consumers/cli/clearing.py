"""The command `clear`: removes a person's memories, conversations or entities."""

from collections.abc import Iterator
from typing import Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.agent.privacy import personal_data
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import Result, warn
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.runner import Runtime, command

app = commands()


@command(app)
async def clear(
    rt: Runtime,
    user: Annotated[str, typer.Option("--user", "-u", help="Whose data.")],
    memories: Annotated[bool, typer.Option("--memories", help="Clear all memories of the person.")] = False,
    conversations: Annotated[
        bool, typer.Option("--conversations", help="Clear all conversations in which nobody else speaks.")
    ] = False,
    entities: Annotated[bool, typer.Option("--entities", help="Clear people, schools, events and topics.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be cleared; clear nothing.")] = False,
    yes: Yes = False,
) -> Result:
    """Remove a person's memories, conversations or entities from every read model.

    The log keeps the events, and the person's key still opens them; `turnlog erase` makes them unreadable.
    """
    parts = personal_data.Parts(memories, conversations, entities)
    if dry_run or not yes:
        planned = await personal_data.plan_clearing(rt, rt.settings.tenant, user, parts)
        if dry_run:
            return Result(planned, _lines(planned, "has"))
        for line in _lines(planned, "has"):
            warn(line)
    await confirm(f"Clear this? It cannot be undone. User {user}", yes)
    made = await personal_data.clear_person(rt, rt.settings.tenant, user, parts)
    left = f"the log keeps the events; `turnlog erase --user {user}` makes them unreadable"
    return Result(made, [*_lines(made, "is cleared of"), left])


def _lines(clearing: "personal_data.Clearing", has: str) -> Iterator[str]:
    parts = {
        counted(clearing.memories, "memory", "memories"): clearing.memories,
        counted(len(clearing.conversations), "conversation"): clearing.conversations,
        counted(clearing.entities, "entity", "entities"): clearing.entities,
    }
    named = ", ".join(part for part, there in parts.items() if there)
    yield f"user {clearing.user} {has} {named or 'none of these'}"
    if clearing.kept:
        kept = ", ".join(clearing.kept)
        yield f"conversations in which others speak stay: {kept}; `turnlog threads delete` removes one"
