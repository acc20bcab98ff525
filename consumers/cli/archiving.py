"""The commands `archive` and `restore`: move cold conversations into files, and back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.agent.operations import archives
from turnlog.consumers.cli.console import Result
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.runner import Runtime, command

if TYPE_CHECKING:
    from turnlog.projectors.models.conversation.thread_lookup import Cold

app = commands()


@command(app, tenant=False)
async def archive(
    rt: Runtime,
    older_than: Annotated[
        int | None,
        typer.Option(min=0, max=36_500, help="Days without a turn. Default: MEMORY_ARCHIVE_THREADS_AFTER_DAYS."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only list the conversations; move nothing.")] = False,
) -> Result:
    """Move cold conversations of all tenants into files; reading one restores it."""
    if dry_run:
        cold = await archives.list_cold_conversations(rt, older_than)
        return Result(cold, _cold_lines(cold, rt.settings.tenant))
    with progress("archiving") as update:
        made = await archives.archive_conversations(rt, older_than, update)
    left = f", left out {made.left_out:,}" if made.left_out else ""
    failed = f", {counted(made.errors, 'error')} (see the log)" if made.errors else ""
    return Result(made, f"archived {made.archived:,} to {made.folder}{left}{failed}", code=1 if made.errors else 0)


@command(app)
async def restore(rt: Runtime, thread: Annotated[str, typer.Argument()]) -> Result:
    """Bring a conversation back from the archive."""
    made = await archives.restore_conversation(rt, rt.settings.tenant, thread)
    return Result(made, f"{made.thread} {'is back' if made.restored else 'is not in the archive'}")


def _cold_lines(cold: "list[Cold]", own: str) -> Iterator[str]:
    """Yields a line for each conversation, with its tenant unless that is `own`."""
    for thread in cold:
        tenant = "" if thread.tenant == own else f"  ({thread.tenant})"
        yield f"{thread.last_active_at:%Y-%m-%d %H:%M}  {thread.message_count:>7,}  {thread.thread}{tenant}"
    yield f"{len(cold):,} would be archived"
