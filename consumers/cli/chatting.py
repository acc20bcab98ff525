"""chat and demo."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import BadOption, Json, Tenant, check_given, emit, emit_line, err, out, tenant_of
from turnlog.consumers.cli.runner import run
from turnlog.events.subjects import check_conversation

if TYPE_CHECKING:
    from turnlog.agent.use_cases.asking import Piece


def register(app: typer.Typer) -> None:
    app.command()(chat)
    app.command()(demo)


def chat(
    thread: Annotated[str, typer.Argument(help="Conversation to continue or begin.")] = "chat",
    message: Annotated[str | None, typer.Option("--message", "-m", help="One message; then end.")] = None,
    user: Annotated[str | None, typer.Option(help="Who you are.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than the configured one.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Chat; the answer streams. Without --message every line of stdin is a message."""

    async def work(settings: Settings) -> int:
        from turnlog.agent.use_cases.asking import Answered, ask
        from turnlog.consumers.roles import playing
        from turnlog.consumers.runtime import opened

        if message is not None and not message.strip():
            raise BadOption("--message holds no words, so there is nothing to answer; give some")
        check_conversation(thread)
        check_given("user", user)
        roles = ("projectors", "reactors", "agent")
        async with opened(settings, "turnlog-chat") as runtime, playing(runtime, roles):
            place = (tenant_of(settings, tenant), thread)
            if settings.offline and not json:
                err.print("no language model is configured (API_KEY): answers quote what recall finds")
            async for text in _lines(message, json):
                async for piece in ask(runtime, *place, text, user=user, model=model):
                    if not json:
                        _show(piece)
                    elif isinstance(piece, Answered):
                        (emit if message else emit_line)(piece)
        return 0

    run(work, json)


def demo(
    keep: Annotated[bool, typer.Option(help="Leave the demo's data in place.")] = False,
    json: Json = False,
) -> None:
    """Watch it all once: turns → events → rows → context → answer, a killed projector, a rebuild, equal rows."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.cli.demo import demonstrate

        say = (lambda text: None) if json else (lambda text: out.print(text, markup=False))
        report = await demonstrate(settings, keep, say)
        if json:
            emit(report)
        return int(not report["ok"])

    run(work, json)


async def _lines(message: str | None, as_json: bool) -> AsyncIterator[str]:
    """The message, or stdin line by line until its end; waiting for a person must not stop the roles."""
    if message is not None:
        yield message
        return
    prompt = "> " if sys.stdin.isatty() and not as_json else ""
    while line := await asyncio.to_thread(_read_line, prompt):
        if line.strip():
            yield line.strip()


def _read_line(prompt: str) -> str:
    if prompt:
        sys.stderr.write(prompt)
        sys.stderr.flush()
    return sys.stdin.readline()


def _show(piece: "Piece") -> None:
    from turnlog.agent.use_cases.asking import Answered, Restarted, Text

    match piece:
        case Text(text):
            sys.stdout.write(text)
        case Restarted():
            sys.stdout.write("\n[the answer starts again]\n")
        case Answered():
            sys.stdout.write("\n")
    sys.stdout.flush()
