"""clear: a person's memories, conversations or entities alone (E 13.4)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import err
from turnlog.consumers.cli.options import add
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.personal_data import Clearing


def register(app: typer.Typer) -> None:
    add(app, clear)


def clear(
    user: Annotated[str, typer.Option("--user", "-u", help="Whose data.")],
    memories: Annotated[bool, typer.Option("--memories", help="All that is remembered of them.")] = False,
    conversations: Annotated[bool, typer.Option("--conversations", help="All in which nobody else speaks.")] = False,
    entities: Annotated[bool, typer.Option("--entities", help="People, schools, events and topics.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what there is, and clear nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Remove a person's memories, conversations or entities from every read model.

    The log keeps the events, and the person's key still opens them: `turnlog erase` is what makes them unreadable.
    """
    from turnlog.agent.use_cases.personal_data import Parts, clear_person, plan_clearing

    parts = Parts(memories, conversations, entities)

    async def planned(runtime: "Runtime") -> "Clearing":
        return await plan_clearing(runtime, runtime.settings.tenant, user, parts)

    async def cleared(runtime: "Runtime") -> "Clearing":
        for line in () if yes else _lines(await planned(runtime), "has"):
            err.print(line, markup=False)
        await confirm(f"Clear this? It cannot be undone. User {user}", yes)
        return await clear_person(runtime, runtime.settings.tenant, user, parts)

    def done(made: "Clearing") -> Iterator[str]:
        yield from _lines(made, "is cleared of")
        yield f"the log keeps the events; `turnlog erase --user {user}` makes them unreadable"

    if dry_run:
        serve(planned, lambda found: _lines(found, "has"))
        return
    serve(cleared, done, confirmed=yes)


def _lines(found: "Clearing", has: str) -> Iterator[str]:
    parts = {
        counted(found.memories, "memory", "memories"): found.memories,
        counted(len(found.conversations), "conversation"): found.conversations,
        counted(found.entities, "entity", "entities"): found.entities,
    }
    named = ", ".join(part for part, there in parts.items() if there)
    yield f"user {found.user} {has} {named or 'none of these'}"
    if found.kept:
        yield f"conversations in which others speak stay: {', '.join(found.kept)}; `turnlog threads delete` removes one"
