"""Labels a conversation with the first words of a user, shortened."""

import re
import unicodedata
from collections.abc import Sequence

import rjieba

from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.threads import SOURCE, get_thread
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.models.language import is_chinese
from turnlog.agent.runtime import Runtime
from turnlog.events.append import deciding_again
from turnlog.events.contracts import Event, ThreadRenamed
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.thread_lookup import numbered_labels

LABEL_WIDTH = 40  # columns of a terminal, where a Chinese character takes two
_LABEL_FROM = 100  # turns to search for a person's first words
_PIECE = re.compile(r"[^\s\u2e80-\uffef]+|[\u2e80-\uffef]+|\s+")


async def label_thread(runtime: Runtime, tenant: str, thread: str) -> str:
    """Labels a conversation that has no label; returns its label.

    The label consists of the first words of a user, shortened between words; if there are none, it is "Conversation 1"
    or "会话 1", with the next free number of the user. An existing label stays. Raises NotFound, InvalidToken.
    """
    return await deciding_again()(_labelled, runtime, tenant, thread)


async def _labelled(runtime: Runtime, tenant: str, thread: str) -> str:
    head = await runtime.log.thread_head(tenant, thread)
    known = await get_thread(runtime, tenant, thread)
    if known.label is not None:
        return known.label
    turns = (await transcript(runtime, tenant, thread, limit=_LABEL_FROM)).turns
    first = next((turn for turn in turns if _words(turn)), None)
    if first is None:
        label, user = await _numbered(runtime, tenant, known.user, turns), known.user
    else:
        label, user = _shortened(_words(first)), first.user  # the label is sealed with this user's key
    await runtime.log.append(
        Event(source=SOURCE, tenant=tenant, thread=thread, user=user, data=ThreadRenamed(label=label)), expected=head
    )
    return label


async def _numbered(runtime: Runtime, tenant: str, user: str | None, turns: Sequence[Message]) -> str:
    name = "会话" if is_chinese(" ".join(content_text(turn.content) for turn in turns)) else "Conversation"
    async with runtime.pool.connection() as conn:
        return f"{name} {await numbered_labels(conn, tenant, user) + 1}"


def _words(turn: Message) -> str:
    """Returns the words of a user's turn on one line; "" for other turns, and if there are only tool results, pictures
    or punctuation."""
    if turn.role != "user":
        return ""
    texts = turn.content
    if not isinstance(texts, str):
        texts = " ".join(str(block["text"]) for block in texts if block.get("type") == "text")
    line = " ".join(texts.split())
    return line if any(sign.isalnum() for sign in line) else ""


def _shortened(line: str) -> str:
    """Returns the text, cut to at most LABEL_WIDTH columns between words; it is cut within a word only if otherwise
    less than half of the width would be used."""
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
    """Returns the words and the spaces between them."""
    return [word for piece in _PIECE.findall(line) for word in (rjieba.cut(piece) if is_chinese(piece) else [piece])]


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
