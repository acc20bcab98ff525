"""compactions, compactions undo: which memories were made one, and taking that back."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, emit, out, run, tenant_of
from turnlog.consumers.cli.extracting import NothingChosen

if TYPE_CHECKING:
    from turnlog.projectors.memory_compacting import Compaction

User = Annotated[str, typer.Option(help="Whose memories.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Memories that were made one.", invoke_without_command=True)
    group.callback()(listed)
    group.command("undo")(undone)
    app.add_typer(group, name="compactions")


def listed(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="Whose memories.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """What the compaction of a user's memories has made one, the newest first."""
    if context.invoked_subcommand is not None:
        return

    async def work(settings: Settings) -> int:
        from turnlog.consumers.runtime import opened, projecting
        from turnlog.events.subjects import memory_thread
        from turnlog.projectors.memory_compacting import compactions

        if user is None:
            raise NothingChosen("say whose memories: `turnlog compactions --user USER`")
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("memories",))
            async with runtime.pool.connection() as conn:
                found = await compactions(conn, tenant_of(settings, tenant), memory_thread(user))
        if json:
            emit(found)
        elif not found:
            out.print("nothing was made one", markup=False)
        for one in () if json else found:
            out.print(_line(one), markup=False)
        return 0

    run(work, json)


def undone(compaction: UUID, user: User, tenant: Tenant = None, json: Json = False) -> None:
    """Let the memories hold again as they did; they are not made one again."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.memories.undoing import undo_compaction
        from turnlog.agent.memories.writing import MemoryWriter, Place
        from turnlog.consumers.runtime import opened, projecting

        async with opened(settings) as runtime, projecting(runtime):
            writer = MemoryWriter(runtime.log, runtime.pool)
            reopened = await undo_compaction(writer, Place(tenant_of(settings, tenant), user), compaction)
        if json:
            emit({"compaction": compaction, "memories": reopened})
        else:
            told = "1 memory holds again" if len(reopened) == 1 else f"{len(reopened)} memories hold again"
            out.print(told, markup=False)
        return 0

    run(work, json)


def _line(one: "Compaction") -> str:
    alike = [f"similarity {one.similarity:.2f}"] if one.similarity else []
    state = ["taken back"] if one.undone else alike
    told = [str(one.event_id), f"{one.compacted_at:%Y-%m-%d %H:%M}", f"{len(one.members)} memories", one.method, *state]
    return "  ".join(told)
