"""dead-letters: events on which a projection or a reactor failed."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.counting import counted
from turnlog.consumers.cli.confirming import Yes, confirm
from turnlog.consumers.cli.console import LAST_SEQ, pretty
from turnlog.consumers.cli.operating import projection_names
from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.dead_letters import DeadEvent, DeadLetter, Retried


def _names() -> list[str]:
    from turnlog.agent.use_cases.lag import REACTORS

    return [*projection_names(), *REACTORS]


Seq = Annotated[int, typer.Argument(min=1, max=LAST_SEQ)]
Only = Annotated[
    str | None, typer.Option("--projection", help="Only of this projection or reactor.", autocompletion=_names)
]


def register(app: typer.Typer) -> None:
    letters = group(app, "dead-letters", "Events on which a projection or a reactor failed.")
    add(letters, listed, "list", tenant=False)
    for command in (show, retry, drop):
        add(letters, command, tenant=False)


def listed(projection: Only = None) -> None:
    """Parked and dropped events."""
    from turnlog.agent.use_cases.dead_letters import list_dead_letters

    serve(
        lambda rt: list_dead_letters(rt, projection),
        lambda found: map(_line, found) if found else ["no dead letters"],
        projecting=False,
    )


def show(seq: Seq) -> None:
    """The stored event at a sequence, and why it is parked."""
    from turnlog.agent.use_cases.dead_letters import show_dead_letter

    def document(found: "DeadEvent") -> dict[str, Any]:
        return {**found.line.document(), "dead_letters": found.letters}

    serve(
        lambda rt: show_dead_letter(rt, seq),
        lambda found: [pretty(document(found))],
        document=document,
        projecting=False,
    )


def retry(
    seq: Annotated[int | None, typer.Argument(help="A parked sequence; all when not given.")] = None,
    projection: Only = None,
) -> None:
    """Apply parked events again, thread by thread in order, and repeat the work of reactors."""

    async def use(runtime: "Runtime") -> "Retried":
        from turnlog.agent.use_cases.dead_letters import retry_dead_letters
        from turnlog.consumers.roles import react

        return await retry_dead_letters(runtime, partial(react, runtime), seq, projection)

    serve(
        use,
        lambda done: [f"{len(done.applied)} applied, {len(done.parked)} still parked"],
        code=lambda done: int(bool(done.parked)),
    )


def drop(seq: Seq, projection: Only = None, yes: Yes = False) -> None:
    """Drop a parked event from the read models; it stays in the log and in this list, and its thread continues."""
    from turnlog.agent.use_cases.dead_letters import drop_dead_letter, parked

    async def use(runtime: "Runtime") -> "Retried":
        await parked(runtime, seq, projection)
        await confirm(f"Leave the event at sequence {seq} out of the read models permanently?", yes)
        return await drop_dead_letter(runtime, seq, projection)

    serve(
        use,
        lambda done: [f"dropped {seq}; {counted(len(done.applied), 'event')} behind it applied"],
        document=lambda done: {"dropped": seq, "applied": done.applied},
        projecting=False,
        confirmed=yes,
    )


def _line(one: "DeadLetter") -> str:
    place = f"{one.status:<8} {one.reason:<7} {one.thread_token[:24]:<24}"
    return f"{one.seq:>8}  {one.projection:<16} {place} {' '.join(one.error.split())[:120]}"
