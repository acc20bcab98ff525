"""Shell completion of threads and users, from servers that are running."""

import asyncio
import contextlib
from typing import Literal

import typer

from turnlog.agent import settings as configured
from turnlog.agent.conversations import threads
from turnlog.consumers import runtime as composed
from turnlog.consumers import servers

_MOST = 1_000
_PATIENCE_S = 5.0


def known_threads(ctx: typer.Context) -> list[tuple[str, str]]:
    """Returns the most recently active threads, each with its label."""
    return _known(ctx, "thread")


def known_users(ctx: typer.Context) -> list[tuple[str, str]]:
    """Returns the users of the most recently active threads."""
    return _known(ctx, "user")


def _known(ctx: typer.Context, kind: Literal["thread", "user"]) -> list[tuple[str, str]]:
    """Returns the most recently active threads, or their users. Returns [] if no server runs or anything fails, because
    the shell waits for the result and shows no errors.
    """
    with contextlib.suppress(Exception):
        settings = configured.load_settings()
        here = servers.status(settings.home)
        if (here.nats and here.postgres) or (settings.nats_url and settings.database_url):
            listed = asyncio.run(_threads(settings, ctx.params.get("tenant") or settings.tenant))
            candidates = {
                (thread.thread, thread.label or "") if kind == "thread" else (thread.user or "", "")
                for thread in listed
            }
            return sorted(item for item in candidates if item[0])
    return []


async def _threads(settings: "configured.Settings", tenant: str) -> "list[threads.ThreadInfo]":
    async with asyncio.timeout(_PATIENCE_S), composed.opened(settings, "turnlog-completion") as runtime:
        return await threads.list_threads(runtime, tenant, limit=_MOST)
