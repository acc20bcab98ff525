"""archive, restore: cold conversations into files, and back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.options import add
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.archive import Archived
    from turnlog.projectors.models.thread_lookup import Cold


def register(app: typer.Typer) -> None:
    add(app, archive, tenant=False)
    add(app, restore)


def archive(
    older_than: Annotated[
        int | None, typer.Option(min=0, max=36_500, help="Days without a turn; MEMORY_ARCHIVE_THREADS_AFTER_DAYS.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only show which conversations.")] = False,
) -> None:
    """Move cold conversations of all tenants into files; reading one restores it."""
    from turnlog.agent.use_cases.archive import archive_conversations, list_cold_conversations
    from turnlog.consumers.cli.progress_bars import progress

    async def archived(runtime: "Runtime") -> "Archived":
        with progress("archiving") as update:
            return await archive_conversations(runtime, older_than, update)

    async def found(runtime: "Runtime") -> "tuple[list[Cold], str]":
        return await list_cold_conversations(runtime, older_than), runtime.settings.tenant

    if dry_run:
        serve(found, lambda made: _cold_lines(*made), document=lambda made: made[0])
    else:
        serve(archived, _archived_lines, code=lambda made: 1 if made.errors else 0)


def restore(thread: Annotated[str, typer.Argument()]) -> None:
    """Bring a conversation back from the archive."""
    from turnlog.agent.use_cases.archive import restore_conversation

    serve(
        lambda rt: restore_conversation(rt, rt.settings.tenant, thread),
        lambda made: [f"{made.thread} {'is back' if made.restored else 'is not in the archive'}"],
    )


def _archived_lines(made: "Archived") -> list[str]:
    left = f", left out {made.left_out:,}" if made.left_out else ""
    failed = f", {counted(made.errors, 'error')} (see the log)" if made.errors else ""
    return [f"archived {made.archived:,} to {made.folder}{left}{failed}"]


def _cold_lines(found: "list[Cold]", own: str) -> Iterator[str]:
    """own: the tenant whose name is left out."""
    for one in found:
        tenant = "" if one.tenant == own else f"  ({one.tenant})"
        yield f"{one.last_active_at:%Y-%m-%d %H:%M}  {one.message_count:>7,}  {one.thread}{tenant}"
    yield f"{len(found):,} would be archived"
