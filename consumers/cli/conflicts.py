"""The commands `conflicts` and `answer`: contradictions between memories, which the user decides."""

from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.memory import memories, memory_changes
from turnlog.consumers.cli.console import Result, rows
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.remembering import User
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.events.contracts import Answer

if TYPE_CHECKING:
    from turnlog.projectors.models.memories.lookup import Conflict

app = commands()


@command(app, projecting=False)
async def conflicts(
    rt: Runtime, user: User, every: Annotated[bool, typer.Option("--all", help="Answered ones too.")] = False
) -> Result:
    """List contradictions that wait for the user's decision."""
    listed = await memories.list_conflicts(rt, rt.settings.tenant, user, every)
    return rows(listed, lambda conflict: _lines(conflict, user), "no question is open")


@command(app)
async def answer(
    rt: Runtime,
    holds: Annotated[Answer, typer.Argument(metavar="ANSWER", help="new, old or both.")],
    user: User,
    question: Annotated[
        str | None, typer.Argument(help="Its id or the beginning of it; not needed if there is only one.")
    ] = None,
) -> Result:
    """Decide which memory of a contradiction is valid: the new one, the old one or both."""
    made = await memory_changes.answer_conflict(rt, rt.settings.tenant, user, holds, question)
    return Result(made, [made.question, f"answered: {made.answer}"])


def _lines(conflict: "Conflict", user: str) -> list[str]:
    how = [] if conflict.answer else [f"      `turnlog answer new --user {user}`, or old, or both"]
    said = f"  answered: {conflict.answer}" if conflict.answer else ""
    return [f"{conflict.conflict_id}  {conflict.raised_at:%Y-%m-%d %H:%M}{said}", f"      {conflict.question}", *how]
