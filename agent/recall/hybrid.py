"""Hybrid history: the newest turns and the older episodes that a question is about, in time order (C8, D 2.2.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from turnlog.agent.recall.episodes import RelevantEpisode, relevant_episodes
from turnlog.agent.recall.search import Recall
from turnlog.events.errors import TurnlogError
from turnlog.projectors.chunk_lookup import Scope
from turnlog.projectors.message import Message
from turnlog.projectors.messages import messages_at, newest_exchanges
from turnlog.projectors.writer import Connection

RECENT_TURNS = 3
TOP_K = 3


class InvalidRecall(TurnlogError):
    """A history is asked for with a number that it cannot have."""

    code = "invalid-recall"


@dataclass(frozen=True, slots=True)
class HybridHistory:
    """messages: oldest first, each once. recent, recalled: which of them are here for which reason, by sequence.

    chunk_ids: what recall found them by, for a receipt. degraded: why vectors took no part, None when they did.
    """

    messages: list[Message]
    recent: tuple[int, ...]
    recalled: tuple[int, ...]
    chunk_ids: tuple[str, ...]
    degraded: str | None


async def hybrid_history(
    conn: Connection,
    recall: Recall,
    tenant: str,
    thread: str,
    query: str,
    *,
    recent_turns: int = RECENT_TURNS,
    top_k: int = TOP_K,
    before_seq: int | None = None,
) -> HybridHistory:
    """The last `recent_turns` turns and the `top_k` episodes before them; 0 is none of them.

    A turn is a user's question with all that followed it: tool rounds and the answer. query: a blank one recalls no
    episode. before_seq: of the question, when it is on the log already: the history is what came before it. Reads the
    newest messages and the recalled ones, not the thread. Raises InvalidRecall for a negative number.
    """
    _check(recent_turns=recent_turns, top_k=top_k)
    recent = await newest_exchanges(conn, tenant, thread, recent_turns, before_seq)
    first = recent[0].seq if recent else before_seq
    found = await relevant_episodes(conn, recall, Scope(tenant, thread), query, top_k, first)
    older = await messages_at(conn, tenant, thread, [seq for episode in found for seq in episode.seqs])
    kept = _not_said_again(found, older, recent)
    by_seq = {message.seq: message for message in older}
    recalled = sorted({seq for episode in kept for seq in episode.seqs if seq in by_seq})
    return HybridHistory(
        [*(by_seq[seq] for seq in recalled), *recent],
        tuple(message.seq for message in recent),
        tuple(recalled),
        tuple(dict.fromkeys(chunk for episode in kept for chunk in episode.chunk_ids)),
        recall.degraded if query.strip() else None,
    )


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise InvalidRecall(f"{name} is {count}; give 0 or more")


def _not_said_again(
    episodes: Sequence[RelevantEpisode], older: Sequence[Message], recent: Sequence[Message]
) -> list[RelevantEpisode]:
    """Without episodes that only repeat what is there already, word for word.

    The whole episode counts: a second "Yes." is no repetition when it answers another question.
    """
    said = {_words(message) for message in recent}
    words = {message.seq: _words(message) for message in older}
    kept = []
    for episode in episodes:
        own = {words[seq] for seq in episode.seqs if seq in words}
        if not own <= said:
            kept.append(episode)
            said |= own
    return kept


def _words(message: Message) -> tuple[str, bytes]:
    content: str | list[dict[str, Any]] = message.content
    return message.role, to_json([content, message.tool_calls])
