"""chat and demo."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import (
    BadOption,
    Json,
    Tenant,
    check_given,
    emit,
    emit_line,
    err,
    out,
    run,
    tenant_of,
)
from turnlog.events.subjects import check_conversation


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

        if message is not None and not message.strip():
            raise BadOption("--message holds no words, so there is nothing to answer; give some")
        check_conversation(thread)
        check_given("user", user)
        roles = ("projectors", "reactors", "agent")
        async with opened(settings, "turnlog-chat") as runtime, playing(runtime, roles):
            place = Conversation(tenant_of(settings, tenant), thread, user, model)
            if settings.offline and not json:
                err.print("no language model is configured (API_KEY): answers quote what recall finds")
            async for text in _lines(message, json):
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


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
