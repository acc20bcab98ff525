"""compactions, compactions undo: which memories were merged, and taking that back."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from turnlog.consumers.cli.console import Json, Tenant, tenant_of
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.compactions import UndoneCompaction
    from turnlog.projectors.models.memories.vectors import Compaction

User = Annotated[str, typer.Option(help="Whose memories.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Memories that were merged.", invoke_without_command=True)
    group.callback()(listed)
    group.command("undo")(undone)
    app.add_typer(group, name="compactions")


def listed(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="Whose memories.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Which memories of a user the compaction has merged, the newest first."""
    if context.invoked_subcommand is not None:
        return

    def chosen() -> None:
        if user is None:
            from turnlog.agent.use_cases.extraction import NothingChosen

            raise NothingChosen("say whose memories: `turnlog compactions --user USER`")

    async def use(runtime: "Runtime") -> "list[Compaction]":
        from turnlog.agent.use_cases.compactions import list_compactions

        return await list_compactions(runtime, tenant_of(runtime.settings, tenant), user or "")

    def lines(found: "list[Compaction]") -> list[str]:
        return [_line(one) for one in found] or ["nothing was merged"]

    serve(use, lines, as_json=json, first=chosen)


def undone(compaction: UUID, user: User, tenant: Tenant = None, json: Json = False) -> None:
    """Make the members valid again as before; they are not merged again."""

    async def use(runtime: "Runtime") -> "UndoneCompaction":
        from turnlog.agent.use_cases.compactions import undo_compaction

        return await undo_compaction(runtime, tenant_of(runtime.settings, tenant), user, compaction)

    def lines(made: "UndoneCompaction") -> list[str]:
        count = len(made.memories)
        return ["1 memory holds again" if count == 1 else f"{count} memories hold again"]

    serve(use, lines, as_json=json)


def _line(one: "Compaction") -> str:
    alike = [f"similarity {one.similarity:.2f}"] if one.similarity else []
    state = ["taken back"] if one.undone else alike
    about = [str(one.event_id), f"{one.compacted_at:%Y-%m-%d %H:%M}", f"{len(one.members)} memories", one.method]
    return "  ".join([*about, *state])
