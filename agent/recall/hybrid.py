"""Builds a hybrid history: the newest turns, and older episodes that are relevant to a question, in chronological
order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from turnlog.agent.recall.confidence import Evidence
from turnlog.agent.recall.episodes import RelevantEpisode, relevant_episodes
from turnlog.agent.recall.search import Recall
from turnlog.events.errors import TurnlogError
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import Message, messages_at, newest_exchanges

RECENT_TURNS = 3
TOP_K = 3


class InvalidRecall(TurnlogError):
    """A number in a request for a hybrid history is negative."""

    code = "invalid-recall"


@dataclass(frozen=True, slots=True)
class HybridHistory:
    """The newest turns and the recalled older turns. messages: oldest first, each once. recent, recalled: sequences of
    the newest and of the recalled messages.

    chunk_ids: ids of the chunks that recall found, for a receipt. degraded: why vectors were not used; None if they
    were, if there is no embedder, or if no search was made. evidence: the evidence for an answer in the older turns;
    None if the query is not a question.
    """

    messages: list[Message]
    recent: tuple[int, ...]
    recalled: tuple[int, ...]
    chunk_ids: tuple[str, ...]
    degraded: str | None
    evidence: Evidence | None = None


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
    """Returns the last `recent_turns` turns and the `top_k` most relevant episodes before them; both may be 0.

    A turn here is a user's question with everything up to its answer; newest_exchanges tells what is returned if users
    send several turns in a row. query: if it is blank, no episode is recalled.
    before_seq: sequence of the question if it is on the log already; the history ends before it. Only the newest and
    the recalled messages are read, not the complete thread. Raises InvalidRecall for a negative number.
    """
    _check(recent_turns=recent_turns, top_k=top_k)
    recent = await newest_exchanges(conn, tenant, thread, recent_turns, before_seq)
    first = recent[0].seq if recent else before_seq
    episodes = await relevant_episodes(conn, recall, Scope(tenant, thread), query, top_k, first)
    asks = recall.question is not None and recall.question.asks
    older = await messages_at(conn, tenant, thread, [seq for episode in episodes for seq in episode.seqs])
    kept = _without_repetitions(episodes, older, recent)
    by_seq = {message.seq: message for message in older}
    recalled = sorted({seq for episode in kept for seq in episode.seqs if seq in by_seq})
    return HybridHistory(
        [*(by_seq[seq] for seq in recalled), *recent],
        tuple(message.seq for message in recent),
        tuple(recalled),
        tuple(dict.fromkeys(chunk for episode in kept for chunk in episode.chunk_ids)),
        recall.degraded if query.strip() else None,
        recall.evidence if asks else None,
    )


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise InvalidRecall(f"{name} is {count}; give 0 or more")


def _without_repetitions(
    episodes: Sequence[RelevantEpisode], older: Sequence[Message], recent: Sequence[Message]
) -> list[RelevantEpisode]:
    """Returns the episodes, without those whose messages all have the same contents as recent messages or as messages
    of better episodes.

    Complete episodes are compared: a second "Yes." is not a repetition if it answers another question.
    """
    contents = {_content(message) for message in recent}
    content_of = {message.seq: _content(message) for message in older}
    kept = []
    for episode in episodes:
        own = {content_of[seq] for seq in episode.seqs if seq in content_of}
        if not own <= contents:
            kept.append(episode)
            contents |= own
    return kept


def _content(message: Message) -> tuple[str, bytes]:
    content: str | list[dict[str, Any]] = message.content
    return message.role, to_json([content, message.tool_calls])
