"""Cuts a long text into overlapping pieces at sentence borders, measured without a tokenizer. Pure."""

import re
from collections.abc import Iterator

PIECE_TOKENS = 400  # the smallest common embedding window is 512, and the date and speaker need room
OVERLAP_TOKENS = 60

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？；])|\n+")
_WIDE = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003134f]")


def estimated_tokens(text: str) -> float:
    """Tokens without a tokenizer, the same on every machine: a wide character is one, four others are one.

    A text has exactly as many as its parts together.
    """
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return wide + (len(text) - wide) / 4


def pieces(text: str) -> list[str]:
    """The text whole, or in pieces of about PIECE_TOKENS that repeat the last OVERLAP_TOKENS."""
    if not text or estimated_tokens(text) <= PIECE_TOKENS:
        return [text] if text else []
    done: list[str] = []
    current: list[str] = []
    tokens = 0.0
    for sentence in _sentences(text):
        more = estimated_tokens(sentence)
        if current and tokens + more > PIECE_TOKENS:
            done.append("".join(current).strip())
            current = _overlap(current)
            tokens = sum(map(estimated_tokens, current))
        current.append(sentence)
        tokens += more
    done.append("".join(current).strip())
    return [piece for piece in done if piece]


def _sentences(text: str) -> Iterator[str]:
    """Sentences with the space that follows them; one without an end is cut by length."""
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        yield from _cut_by_length(text[start:end])
        start = end


def _cut_by_length(sentence: str) -> Iterator[str]:
    room = PIECE_TOKENS - OVERLAP_TOKENS
    while estimated_tokens(sentence) > room:
        at = int(len(sentence) * room / estimated_tokens(sentence))
        while estimated_tokens(sentence[:at]) > room:
            at -= max(1, at // 20)
        space = sentence.rfind(" ", at // 2, at)
        at = space + 1 if space > 0 else at
        yield sentence[:at]
        sentence = sentence[at:]
    if sentence:
        yield sentence


def _overlap(sentences: list[str]) -> list[str]:
    first, tokens = len(sentences), 0.0
    while first > 1 and (tokens := tokens + estimated_tokens(sentences[first - 1])) <= OVERLAP_TOKENS:
        first -= 1
    return sentences[first:]


def head(text: str, limit: float) -> str:
    """The beginning of the text, at most `limit` estimated tokens."""
    tokens = estimated_tokens(text)
    return text if tokens <= limit else text[: max(1, int(len(text) * limit / tokens))]
