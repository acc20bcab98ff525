"""Reads the transcript of a conversation: its turns, their cost, and their blocks for front-ends."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound
from turnlog.events.subjects import check_place
from turnlog.projectors.models.conversation.message import Cost, Message, costs_at, messages_page
from turnlog.projectors.models.conversation.thread_lookup import is_there

READS = ("messages", "thread_activity", "archives")
PART = 500


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a thread's turns, oldest first. more: there are further turns in the direction of reading. version: the
    version of the thread when it was read, or slightly before."""

    turns: list[Message]
    more: bool
    version: int


async def transcript(
    runtime: Runtime,
    tenant: str,
    thread: str,
    *,
    limit: int = 1_000,
    after_seq: int = 0,
    before_seq: int | None = None,
    newest: bool = False,
) -> Page:
    """Returns at most `limit` turns between two sequences of the log, both excluded. newest: the newest turns instead
    of the oldest.

    An archived conversation is restored first. Raises NotFound for a thread that does not exist, InvalidToken.
    """
    check_place(tenant, thread)
    version = await runtime.wait_until_thread_projected(tenant, thread, READS)
    async with runtime.pool.connection() as conn:
        await restored_if_archived(runtime, conn, tenant, thread)
        turns = await messages_page(conn, tenant, thread, limit + 1, after_seq, before_seq, newest)
        if not turns and not await is_there(conn, tenant, thread):
            raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    return Page(turns[-limit:] if newest else turns[:limit], len(turns) > limit, version)


async def transcript_in_parts(
    runtime: Runtime, tenant: str, thread: str, after_seq: int = 0
) -> AsyncIterator[list[Message]]:
    """Yields all turns of a conversation after a sequence, oldest first, PART at a time, so that a long conversation
    does not block others; no connection is held between parts. Raises the errors of `transcript`."""
    more = True
    while more:
        page = await transcript(runtime, tenant, thread, limit=PART, after_seq=after_seq)
        yield page.turns
        more, after_seq = page.more, page.turns[-1].seq if page.turns else after_seq


async def costs_of(runtime: Runtime, tenant: str, thread: str, turns: Sequence[Message]) -> dict[int, Cost]:
    """Returns the tokens and latency of turns of a transcript, by sequence."""
    async with runtime.pool.connection() as conn:
        return await costs_at(conn, tenant, thread, [turn.seq for turn in turns])


def blocks_of(turn: Message) -> list[dict[str, Any]]:
    """Returns a turn's blocks for a front-end: text, thinking, tool_use, tool_result, and others as stored."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.content}] if turn.content else []
    if not isinstance(turn.content, str):
        blocks = list(turn.content)
    if turn.role == "tool" and not any(block["type"] == "tool_result" for block in blocks):
        return [{"type": "tool_result", "tool_use_id": turn.tool_call_id, "content": turn.content}]
    shown = {block.get("id") for block in blocks if block["type"] == "tool_use"}
    calls = [call for call in turn.tool_calls if call["id"] not in shown]
    return blocks + [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": json_or_text(call["arguments"])}
        for call in calls
    ]


def json_or_text(written: str) -> Any:
    """Returns the JSON value of a tool's arguments or result; a text that is not JSON is returned unchanged."""
    try:
        return json.loads(written)
    except ValueError:
        return written
