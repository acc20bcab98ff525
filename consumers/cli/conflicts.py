"""conflicts, answer: contradictions of memories that the user decides (M5)."""

from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.consumers.cli.memories import User
from turnlog.consumers.cli.options import add
from turnlog.consumers.cli.runner import serve
from turnlog.events.contracts import Answer

if TYPE_CHECKING:
    from turnlog.projectors.models.memories.lookup import Conflict


def register(app: typer.Typer) -> None:
    add(app, conflicts)
    add(app, answer)


def conflicts(user: User, every: Annotated[bool, typer.Option("--all", help="Answered ones too.")] = False) -> None:
    """Contradictions that wait for the user's decision."""

    from turnlog.agent.use_cases.memories import list_conflicts

    serve(
        lambda rt: list_conflicts(rt, rt.settings.tenant, user, every),
        lambda found: [line for one in found for line in _lines(one, user)] or ["no question is open"],
        projecting=False,
    )


def answer(
    holds: Annotated[Answer, typer.Argument(metavar="ANSWER", help="new, old or both.")],
    user: User,
    question: Annotated[
        str | None, typer.Argument(help="Its id or the beginning; not needed for the only one.")
    ] = None,
) -> None:
    """Decide which memory of a contradiction holds: the new one, the old one or both."""

    from turnlog.agent.use_cases.memory_changes import answer_conflict

    serve(
        lambda rt: answer_conflict(rt, rt.settings.tenant, user, holds, question),
        lambda made: [made.question, f"answered: {made.answer}"],
    )


def _lines(conflict: "Conflict", user: str) -> list[str]:
    how = [] if conflict.answer else [f"      `turnlog answer new --user {user}`, or old, or both"]
    said = f"  answered: {conflict.answer}" if conflict.answer else ""
    return [f"{conflict.conflict_id}  {conflict.raised_at:%Y-%m-%d %H:%M}{said}", f"      {conflict.question}", *how]
