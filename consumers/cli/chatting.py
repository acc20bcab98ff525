"""chat and demo."""

import sys
from typing import Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, emit, emit_line, err, out, run


def register(app: typer.Typer) -> None:
    app.command()(chat)
    app.command()(demo)


def chat(
    thread: Annotated[str, typer.Argument(help="Conversation to go on with, or to begin.")] = "chat",
    message: Annotated[str | None, typer.Option("--message", "-m", help="One message; then end.")] = None,
    user: Annotated[str | None, typer.Option(help="Who you are.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than the configured one.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Talk; the answer streams. Without --message every line of stdin is one."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.conversing import Conversation, talk
        from turnlog.consumers.roles import playing
        from turnlog.consumers.runtime import opened

        roles = ("projectors", "reactors", "agent")
        async with opened(settings, "turnlog-chat") as runtime, playing(runtime, roles):
            place = Conversation(tenant or settings.tenant, thread, user, model)
            if settings.offline and not json:
                err.print("no language model is configured (API_KEY): answers quote what recall finds")
            for text in [message] if message else _lines(json):
                shown = await talk(runtime, place, text, (lambda _: None) if json else _write)
                if json:
                    (emit if message else emit_line)(shown)
                else:
                    print()
        return 0

    run(work, json)


def demo(
    keep: Annotated[bool, typer.Option(help="Leave the demo's data in place.")] = False,
    json: Json = False,
) -> None:
    """Watch it all once: turns → events → rows → context → answer, a killed projector, a rebuild, equal rows."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.demonstrating import demonstrate

        say = (lambda text: None) if json else (lambda text: out.print(text, markup=False))
        report = await demonstrate(settings, keep, say)
        if json:
            emit(report)
        return int(not report["ok"])

    run(work, json)


def _lines(as_json: bool) -> "list[str] | _Prompt":
    if sys.stdin.isatty() and not as_json:
        return _Prompt()
    return [line.strip() for line in sys.stdin if line.strip()]


class _Prompt:
    """Lines typed by a person, until Ctrl-D."""

    def __iter__(self) -> "_Prompt":
        return self

    def __next__(self) -> str:
        try:
            while not (line := input("> ").strip()):
                pass
        except EOFError:
            raise StopIteration from None
        return line


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
