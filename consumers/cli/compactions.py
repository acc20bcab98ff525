"""compactions, compactions undo: which memories were merged, and taking that back."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.use_cases.memory_changes import UndoneCompaction
    from turnlog.projectors.models.memories.vectors import Compaction

User = Annotated[str, typer.Option(help="Whose memories.")]


def register(app: typer.Typer) -> None:
    compactions = group(app, "compactions", "Memories that were merged.", listed)
    add(compactions, undone, "undo")


def listed(user: Annotated[str | None, typer.Option(help="Whose memories.")] = None) -> None:
    """Which memories of a user the compaction has merged, the newest first."""

    def chosen() -> None:
        if user is None:
            from turnlog.agent.use_cases.extraction import NothingChosen

            raise NothingChosen("say whose memories: `turnlog compactions --user USER`")

    from turnlog.agent.use_cases.memory_changes import list_compactions

    serve(
        lambda rt: list_compactions(rt, rt.settings.tenant, user or ""),
        lambda found: [_line(one) for one in found] or ["nothing was merged"],
        first=chosen,
        projecting=False,
    )


def undone(compaction: UUID, user: User) -> None:
    """Make the members valid again as before; they are not merged again."""
    from turnlog.agent.use_cases.memory_changes import undo_compaction

    def lines(made: "UndoneCompaction") -> list[str]:
        return [f"{counted(len(made.memories), 'memory', 'memories')} valid again"]

    serve(lambda rt: undo_compaction(rt, rt.settings.tenant, user, compaction), lines)


def _line(one: "Compaction") -> str:
    alike = [f"similarity {one.similarity:.2f}"] if one.similarity else []
    state = ["taken back"] if one.undone else alike
    about = [
        str(one.event_id),
        f"{one.compacted_at:%Y-%m-%d %H:%M}",
        counted(len(one.members), "memory", "memories"),
        one.method,
    ]
    return "  ".join([*about, *state])
