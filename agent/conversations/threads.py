"""Conversations: list, look up, open, rename, label, delete."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from turnlog.agent.runtime import Runtime
from turnlog.events.append import deciding_again
from turnlog.events.contracts import Event, EventData, ThreadDeleted, ThreadOpened, ThreadRenamed
from turnlog.events.errors import NotFound
from turnlog.events.publish import Appended
from turnlog.events.subjects import check_place
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.thread_lookup import archived_threads, numbered_labels, one_thread
from turnlog.projectors.models.conversation.thread_lookup import list_threads as activity

SOURCE = "turnlog/threads"
READS = ("thread_activity", "archives")
_PAGE = 500
LABEL_WIDTH = 40  # of a terminal: a Chinese character takes two
_LABEL_FROM = 100  # turns; the first words of a person are among them, or the label is a number
_PIECE = re.compile(r"[^\s\u2e80-\uffef]+|[\u2e80-\uffef]+|\s+")


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A conversation in a list. archived: its turns are in a file until somebody reads or continues it. summary: of its
    older turns. metadata: what the client that opened it keeps with it."""

    thread: str
    label: str | None
    user: str | None
    messages: int
    last_active_at: datetime
    archived: bool = False
    created_at: datetime | None = None
    summary: str | None = None
    metadata: dict[str, Any] | None = None


async def list_threads(
    runtime: Runtime,
    tenant: str,
    user: str | None = None,
    limit: int = 100,
    after: tuple[datetime, str] | None = None,
) -> list[ThreadInfo]:
    """Conversations of a tenant, or of one user, most recently active first.

    after: last_active_at and id of the conversation that the list continues behind. Raises InvalidToken.
    """
    check_place(tenant, user=user)
    await runtime.settle(names=READS)
    async with runtime.pool.connection() as conn:
        archived = set(await archived_threads(conn, tenant))
        rows = await activity(conn, tenant, user, limit, after)
    return [_info(row, row["thread_id"] in archived) for row in rows]


async def find_threads(
    runtime: Runtime,
    tenant: str,
    user: str,
    query: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
) -> list[ThreadInfo]:
    """As list_threads; query: only conversations with it in their label or id, whatever the case of its letters."""
    if query is None:
        return await list_threads(runtime, tenant, user, limit, after)
    found: list[ThreadInfo] = []
    while len(found) < limit:
        page = await list_threads(runtime, tenant, user, _PAGE, after)
        found += [one for one in page if query.casefold() in f"{one.label or ''}\n{one.thread}".casefold()]
        if len(page) < _PAGE:
            break
        after = (page[-1].last_active_at, page[-1].thread)
    return found[:limit]


async def get_thread(runtime: Runtime, tenant: str, thread: str) -> ThreadInfo:
    """Raises NotFound, InvalidToken."""
    check_place(tenant, thread)
    await runtime.settle_thread(tenant, thread, READS)
    async with runtime.pool.connection() as conn:
        row = await one_thread(conn, tenant, thread)
        archived = await archived_threads(conn, tenant)
    if row is None:
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    return _info(row, thread in archived)


async def thread_version(runtime: Runtime, tenant: str, thread: str) -> int:
    """The sequence of the thread's last event, 0 for none; an append may expect it. Raises InvalidToken."""
    check_place(tenant, thread)
    return await runtime.log.thread_head(tenant, thread)


async def open_thread(
    runtime: Runtime,
    tenant: str,
    thread: str,
    user: str | None = None,
    label: str | None = None,
    *,
    metadata: dict[str, Any] | None = None,
    must_be_new: bool = False,
    event_id: UUID | None = None,
) -> Appended:
    """Puts a thread without turns into the list; a label, or metadata, replaces that of a thread which is open already.

    A first turn opens its thread too, so this call is optional. must_be_new: raises WrongExpectedVersion for a
    thread id that was ever used. Raises InvalidToken.
    """
    check_place(tenant, thread, user)
    event = _event(tenant, thread, user, ThreadOpened(label=label, metadata=metadata), event_id)
    return await runtime.log.append(event, 0 if must_be_new else None)


async def rename_thread(
    runtime: Runtime, tenant: str, thread: str, label: str, *, event_id: UUID | None = None
) -> Appended:
    """Raises NotFound, InvalidToken."""
    known = await get_thread(runtime, tenant, thread)
    return await runtime.log.append(_event(tenant, thread, known.user, ThreadRenamed(label=label), event_id))


async def label_thread(runtime: Runtime, tenant: str, thread: str) -> str:
    """Gives a conversation without a label its first one, and returns the label that it has now.

    It is what a user said first, shortened at a word; without such words "Conversation 1" or "会话 1", with the
    next free number of the user's. One that was given before stays. Raises NotFound, InvalidToken.
    """
    return await deciding_again()(_labelled, runtime, tenant, thread)


async def _labelled(runtime: Runtime, tenant: str, thread: str) -> str:
    head = await runtime.log.thread_head(tenant, thread)
    known = await get_thread(runtime, tenant, thread)
    if known.label is not None:
        return known.label
    from turnlog.agent.answering.turns import transcript  # loads for a fifth of a second, which a list does not need

    turns = (await transcript(runtime, tenant, thread, limit=_LABEL_FROM)).turns
    first = next((turn for turn in turns if _words(turn)), None)
    if first is None:
        label, user = await _numbered(runtime, tenant, known.user, turns), known.user
    else:
        label, user = _shortened(_words(first)), first.user  # whose key seals the label
    await runtime.log.append(_event(tenant, thread, user, ThreadRenamed(label=label), None), expected=head)
    return label


async def _numbered(runtime: Runtime, tenant: str, user: str | None, turns: Sequence[Message]) -> str:
    from turnlog.agent.context.plain_text import content_text
    from turnlog.agent.models.language import is_chinese

    name = "会话" if is_chinese(" ".join(content_text(turn.content) for turn in turns)) else "Conversation"
    async with runtime.pool.connection() as conn:
        return f"{name} {await numbered_labels(conn, tenant, user) + 1}"


def _words(turn: Message) -> str:
    """What a user wrote, on one line; "" for other turns, and for tool results, pictures and signs alone."""
    if turn.role != "user":
        return ""
    texts = turn.content if isinstance(turn.content, str) else _texts(turn.content)
    line = " ".join(texts.split())
    return line if any(sign.isalnum() for sign in line) else ""


def _texts(blocks: Sequence[dict[str, Any]]) -> str:
    return " ".join(str(block["text"]) for block in blocks if block.get("type") == "text")


def _shortened(line: str) -> str:
    """At most LABEL_WIDTH wide, cut between words; within a word only where less than half would be left."""
    if _width(line) <= LABEL_WIDTH:
        return line
    kept = ""
    for piece in _pieces(line):
        if _width(kept + piece) >= LABEL_WIDTH:
            break
        kept += piece
    if _width(kept) < LABEL_WIDTH // 2:
        kept = next(line[:end] for end in range(LABEL_WIDTH, 0, -1) if _width(line[:end]) < LABEL_WIDTH)
    return kept.rstrip(" ,;:，、；：-–—") + "…"


def _pieces(line: str) -> list[str]:
    """Words and the spaces between them."""
    import rjieba  # takes a quarter of a second to load, which most commands save

    from turnlog.agent.models.language import is_chinese

    return [word for piece in _PIECE.findall(line) for word in (rjieba.cut(piece) if is_chinese(piece) else [piece])]


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


async def delete_thread(runtime: Runtime, tenant: str, thread: str, *, event_id: UUID | None = None) -> Appended:
    """Every read model drops the thread's rows, and reads no longer find it when this returns.

    The log keeps the events, and memories that were extracted from the thread stay: erasing a person removes both.
    Raises NotFound, InvalidToken.
    """
    known = await get_thread(runtime, tenant, thread)
    done = await runtime.log.append(_event(tenant, thread, known.user, ThreadDeleted(), event_id))
    await runtime.settle_thread(tenant, thread, READS)
    return done


def _event(tenant: str, thread: str, user: str | None, data: EventData, event_id: UUID | None) -> Event:
    return Event(id=event_id or uuid7(), source=SOURCE, tenant=tenant, thread=thread, user=user, data=data)


def _info(row: dict[str, Any], archived: bool) -> ThreadInfo:
    about = {name: row[name] for name in ("label", "last_active_at", "created_at", "summary", "metadata")}
    return ThreadInfo(row["thread_id"], user=row["user_id"], messages=row["message_count"], archived=archived, **about)
