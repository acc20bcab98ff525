"""Builds tier 1: the summary of earlier turns and the topics that can be recalled, as one message."""

from collections.abc import Sequence
from typing import NamedTuple

from turnlog.agent.context.cut import cut_end
from turnlog.agent.context.titles import SUMMARY_TITLE, TOPICS_TITLE
from turnlog.agent.context.tokens import TokenCounter
from turnlog.agent.context.wire import Wire

# It is a user message, because a summary of users' words must not gain the authority of the system, and many chat
# templates allow a system message only at the start.
ROLE = "user"
RECALL_HINT = "Use the recall_memory tool to retrieve details about any topic above."


class Summary(NamedTuple):
    """The rolling summary of a thread. seq: sequence of the event that wrote it."""

    text: str
    seq: int | None = None


class Digest(NamedTuple):
    """The message of tier 1, its tokens, and the topics that fit."""

    message: Wire
    tokens: int
    topics: tuple[str, ...]
    cut: bool


def digest(summary: str, topics: Sequence[str], limit: int, counter: TokenCounter) -> Digest | None:
    """Returns tier 1 in at most `limit` tokens; None if it is empty or does not fit.

    topics: most important first. If everything together exceeds the limit, the topics get at most a quarter of it and
    the end of the summary is cut, with a mark.
    """
    summary = summary.strip()
    names = tuple(name for topic in topics if (name := " ".join(topic.split())))
    whole = _digest(summary, names, False, counter)
    if whole is None or whole.tokens <= limit:
        return whole
    kept = _fitting_topics(names, limit // 4, counter) if summary else _fitting_topics(names, limit, counter)
    frame = _digest("-", kept, True, counter) if summary else None
    room = limit - (frame.tokens if frame else 0)
    shorter = _digest(cut_end(summary, max(0, room), counter), kept, True, counter)
    return shorter if shorter is not None and shorter.tokens <= limit else None


def digest_text(summary: str, topics: Sequence[str]) -> str:
    """Returns the text of tier 1, without empty parts."""
    parts = [f"{SUMMARY_TITLE}\n{summary}"] if summary else []
    if topics:
        parts.append(f"{TOPICS_TITLE}: {', '.join(topics)}\n{RECALL_HINT}")
    return "\n\n".join(parts)


def _digest(summary: str, topics: tuple[str, ...], cut: bool, counter: TokenCounter) -> Digest | None:
    text = digest_text(summary, topics)
    if not text:
        return None
    message: Wire = {"role": ROLE, "content": text}
    return Digest(message, counter.wire({"role": ROLE, "content": ""}) + counter.cached_text(text), topics, cut)


def _fitting_topics(topics: tuple[str, ...], limit: int, counter: TokenCounter) -> tuple[str, ...]:
    """Returns as many of the first topics as fit into `limit` tokens together with the text around them, by a binary
    search."""
    low, high = 0, len(topics)
    while low < high:
        middle = (low + high + 1) // 2
        if counter.wire({"role": ROLE, "content": digest_text("", topics[:middle])}) <= limit:
            low = middle
        else:
            high = middle - 1
    return topics[:low]
