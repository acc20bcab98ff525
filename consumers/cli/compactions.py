"""The commands `compactions` and `compactions undo`: list merged memories, and separate them again."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from turnlog.agent.counting import counted
from turnlog.agent.memory import memory_changes
from turnlog.agent.memory.extraction import extract_now
from turnlog.consumers.cli.console import Result, rows
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command, listed

if TYPE_CHECKING:
    from turnlog.projectors.models.memories.vectors import Compaction

User = Annotated[str, typer.Option(help="Whose memories.")]

app = commands()
below = group(app, "compactions", "Memories that were merged.")


def _named(user: str | None) -> None:
    if user is None:
        raise extract_now.NothingChosen("name the user: `turnlog compactions --user USER`")


@listed(below, checks=_named)
async def list_(rt: Runtime, user: Annotated[str | None, typer.Option(help="Whose memories.")] = None) -> Result:
    """List the memories of a user that compaction merged, newest first."""
    return rows(await memory_changes.list_compactions(rt, rt.settings.tenant, user or ""), _line, "nothing was merged")


@command(below, "undo")
async def undone(rt: Runtime, compaction: UUID, user: User) -> Result:
    """Undo a merge: its memories are valid again as before, and are not merged again."""
    made = await memory_changes.undo_compaction(rt, rt.settings.tenant, user, compaction)
    return Result(made, f"{counted(len(made.memories), 'memory', 'memories')} valid again")


def _line(compaction: "Compaction") -> str:
    alike = f"similarity {compaction.similarity:.2f}" if compaction.similarity else ""
    members = counted(len(compaction.members), "memory", "memories")
    about = (str(compaction.event_id), f"{compaction.compacted_at:%Y-%m-%d %H:%M}", members, compaction.method)
    return "  ".join(filter(None, (*about, "taken back" if compaction.undone else alike)))
