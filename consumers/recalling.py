"""The recall command: a file of questions, and what one question (recalling_once.py) needs too."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.recall.episodes import EPISODES, relevant_turns
from turnlog.agent.recall.search import Recall, Recalled
from turnlog.agent.recall.when import when
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import emit_line, err, progress
from turnlog.consumers.embedding import embed_pending
from turnlog.consumers.runtime import Runtime, opened, projecting
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.projectors.chunk_lookup import Scope
from turnlog.projectors.thread_activity import is_there
from turnlog.projectors.writer import Connection

EMBED_FIRST_S = 60.0


class BadQuery(TurnlogError):
    """A recall query lacks its text or its scope."""

    code = "bad-query"


@dataclass(frozen=True, slots=True)
class RecallCommand:
    tenant: str
    thread: str | None
    user: str | None
    k: int
    keyword_only: bool


async def recall_batch(settings: Settings, command: RecallCommand, path: Path) -> int:
    """One JSON line per line of the file, in its order; a bad line's answer is its error. Exit 1 if any is bad."""
    bad = 0
    lines = list(_lines(path))
    async with opened(settings) as runtime, projecting(runtime):
        await runtime.settle(names=("vectors", "thread_activity"))
        if not command.keyword_only:
            await _vectors_first(runtime, command, [line for _, line in lines])
        recall = make_recall(settings, command.keyword_only)
        for number, line in lines:
            try:
                emit_line(await _answer(runtime, recall, command, line))
            except (BadQuery, NotFound, ValueError) as error:
                bad += 1
                emit_line({"line": number, "error": str(error), "items": []})
    return int(bad > 0)


async def _vectors_first(runtime: Runtime, command: RecallCommand, lines: Sequence[str]) -> None:
    """Embeds what the asked threads still lack, for a time at most: the rest is found by its words."""
    threads = sorted({thread for line in lines if (thread := _thread(line) or command.thread)})
    embedder, stop = make_embedder(runtime.settings), asyncio.Event()
    alarm = asyncio.get_running_loop().call_later(EMBED_FIRST_S, stop.set)
    try:
        with progress("embedding") as update:
            await embed_pending(runtime, embedder, update, stop, (command.tenant, threads))
    except ModelError as error:
        err.print(f"keyword search only: {error}", markup=False)
    finally:
        alarm.cancel()
        await embedder.close()


def _thread(line: str) -> str | None:
    try:
        asked = json.loads(line)
    except ValueError:
        return None
    thread = asked.get("thread") if isinstance(asked, dict) else None
    return thread if isinstance(thread, str) else None


def make_recall(settings: Settings, keyword_only: bool = False) -> Recall:
    return Recall(None if keyword_only else make_embedder(settings))


async def hybrid_turns(
    conn: Connection, settings: Settings, place: tuple[str, str], query: str | None, as_of: int | None
) -> list[int]:
    """What the agent's context of a thread would put first for a query (C8). Raises BadQuery."""
    if not query or as_of is not None:
        raise BadQuery("--hybrid needs --query, and shows a thread as it is now, without --as-of")
    recall = make_recall(settings)
    count = settings.hybrid_episodes or EPISODES
    found = await relevant_turns(conn, recall, Scope(*place), query, count, settings.full_recent_count)
    if recall.degraded:
        err.print(recall.degraded, markup=False)
    return found


async def _answer(runtime: Runtime, recall: Recall, command: RecallCommand, line: str) -> dict[str, Any]:
    asked = json.loads(line)
    if not isinstance(asked, dict) or not isinstance(asked.get("query"), str):
        raise BadQuery('a line must be an object with "query", "thread" (or "user") and "k"')
    k = int(asked.get("k") or command.k)
    scope = scope_of(command, asked.get("thread") or command.thread, asked.get("user"))
    items = await search_turns(runtime, recall, scope, asked["query"], k)
    return {**asked, "k": k, "items": [item.document() for item in items], "degraded": recall.degraded}


def scope_of(command: RecallCommand, thread: str | None, user: str | None = None) -> Scope:
    user = user or command.user
    if thread is None and user is None:
        raise BadQuery("say where to look: a thread, or a user for all of theirs")
    return Scope(command.tenant, thread, None if thread is not None else user)


async def search_turns(runtime: Runtime, recall: Recall, scope: Scope, query: str, k: int) -> list[Recalled]:
    async with runtime.pool.connection() as conn:
        days = when(query, datetime.now(UTC), runtime.settings.zone)
        found = await recall.search(conn, scope, query, k, when=days)
        if not found and scope.thread is not None and not await is_there(conn, scope.tenant, scope.thread):
            raise NotFound(f"there is no thread {scope.thread!r}; `turnlog threads` lists them")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadQuery(f"cannot read {path}: {error}") from error
    return ((n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip())
