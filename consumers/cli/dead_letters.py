"""The commands `dead-letters`: events on which a projection or a reactor failed."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.agent.operations import dead_letters, lag, read_models
from turnlog.consumers import roles
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import LAST_SEQ, Result, pretty
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

Seq = Annotated[int, typer.Argument(min=1, max=LAST_SEQ)]
Only = Annotated[
    str | None,
    typer.Option(
        "--projection",
        help="Only events of this projection or reactor.",
        autocompletion=lambda: [*read_models.projection_names(), *lag.REACTORS],
    ),
]

app = commands()
below = group(app, "dead-letters", "Events on which a projection or a reactor failed.")


@command(below, "list", tenant=False, projecting=False)
async def list_(rt: Runtime, projection: Only = None) -> Result:
    """List parked and dropped events."""
    return table(await dead_letters.list_dead_letters(rt, projection), _COLUMNS, "no dead letters")


@command(below, tenant=False, projecting=False)
async def show(rt: Runtime, seq: Seq) -> Result:
    """Show the stored event at a sequence, and why it is parked."""
    parked = await dead_letters.show_dead_letter(rt, seq)
    document = {**parked.line.document(), "dead_letters": parked.letters}
    return Result(document, pretty(document))


@command(below, tenant=False)
async def retry(
    rt: Runtime,
    seq: Annotated[int | None, typer.Argument(help="A parked sequence. Default: all.")] = None,
    projection: Only = None,
) -> Result:
    """Apply parked events again, thread by thread in order, and repeat the work of reactors."""
    done = await dead_letters.retry_dead_letters(rt, partial(roles.react, rt), seq, projection)
    said = f"{len(done.applied)} applied, {len(done.parked)} still parked"
    return Result(done, said, code=int(bool(done.parked)))


@command(below, tenant=False, projecting=False)
async def drop(rt: Runtime, seq: Seq, projection: Only = None, yes: Yes = False) -> Result:
    """Drop a parked event from the read models; it stays in the log and in this list, and its thread continues."""
    await dead_letters.parked(rt, seq, projection)
    await confirm(f"Leave the event at sequence {seq} out of the read models permanently?", yes)
    done = await dead_letters.drop_dead_letter(rt, seq, projection)
    said = f"dropped {seq}; {counted(len(done.applied), 'event')} after it applied"
    return Result({"dropped": seq, "applied": done.applied}, said)


_COLUMNS: dict[str, Callable[["dead_letters.DeadLetter"], Any]] = {
    "SEQ": lambda letter: str(letter.seq),
    "PROJECTION": lambda letter: letter.projection,
    "STATE": lambda letter: letter.status,
    "REASON": lambda letter: letter.reason,
    "THREAD": lambda letter: letter.thread_token[:24],
    "ERROR": lambda letter: " ".join(letter.error.split()),
}
