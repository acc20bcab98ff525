"""Cuts a text to a number of tokens, with a visible mark."""

from collections.abc import Callable

from turnlog.agent.context.tokens import PIECE_CHARS, TokenCounter

END_MARK = "... (cut to fit)"
MIDDLE_MARK = "\n\n[... {count:,} characters cut to fit the context window ...]\n\n"


def cut_end(text: str, limit: int, counter: TokenCounter) -> str:
    """Returns the start of a text in at most `limit` tokens, including the mark; "" if the mark does not fit."""
    return _shrink(text, limit, counter, lambda keep: _head(text, keep, counter) + END_MARK)


def cut_middle(text: str, limit: int, counter: TokenCounter) -> str:
    """Returns the start and end of a text in at most `limit` tokens, including the mark, because a question is mostly
    at the start or the end."""

    def keep_both_ends(keep: int) -> str:
        head, tail = _head(text, keep - keep // 2, counter), _tail(text, keep // 2, counter)
        return head + MIDDLE_MARK.format(count=len(text) - len(head) - len(tail)) + tail

    return _shrink(text, limit, counter, keep_both_ends)


def _shrink(text: str, limit: int, counter: TokenCounter, attempt: Callable[[int], str]) -> str:
    """Returns the text cut to `limit` tokens. It first keeps `limit` tokens, then fewer by the excess of the result,
    which takes two or three rounds."""
    if not counter.exceeds(text, limit):
        return text
    keep = limit
    while keep >= 0:
        shorter = attempt(keep)
        over = counter.text(shorter) - limit
        if over <= 0:
            return shorter
        keep -= over
    return ""


def _head(text: str, tokens: int, counter: TokenCounter) -> str:
    """Returns the first `tokens` tokens as text. Of a huge text, it encodes little more than the part that is kept."""
    for start in range(0, len(text), PIECE_CHARS):
        ids = counter.encoding.encode_ordinary(text[start : start + PIECE_CHARS])
        if len(ids) > tokens:
            return text[:start] + counter.encoding.decode_bytes(ids[:tokens]).decode("utf-8", "ignore")
        tokens -= len(ids)
    return text


def _tail(text: str, tokens: int, counter: TokenCounter) -> str:
    for end in range(len(text), 0, -PIECE_CHARS):
        ids = counter.encoding.encode_ordinary(text[max(0, end - PIECE_CHARS) : end])
        if len(ids) > tokens:
            kept = counter.encoding.decode_bytes(ids[len(ids) - tokens :])
            return kept.decode("utf-8", "ignore") + text[end:]
        tokens -= len(ids)
    return text
