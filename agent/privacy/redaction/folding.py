"""Makes texts comparable: their normal form, and runs of words by which a quotation is recognised. Pure."""

import re
from collections.abc import Iterator, Sequence
from unicodedata import normalize

_UNSEEN = "\\u00ad\\u200b-\\u200f\\u2060\\ufeff"
_LETTER = re.compile(rf"[^{_UNSEEN}][\u0300-\u036f\u3099\u309a]*")  # a character with its accents
# A word, or a single character of a script without spaces between words.
_WORD = re.compile(r"(?=\w)[⺀-\U0010ffff]|[^\W⺀-\U0010ffff]+")
RUN_WORDS, RUN_BYTES = 4, 20


def folded_text(text: str) -> str:
    """Returns the normal form of a text, which does not depend on case, character width, ligatures and the encoding of
    accents."""
    return normalize("NFC", normalize("NFKC", text).casefold())


def folded_with_places(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Returns the folded text without invisible characters, and for each of its characters the position of its origin
    in the text."""
    parts, places = [], []
    for letter in _LETTER.finditer(text):
        part = folded_text(letter[0])
        parts.append(part)
        places += [letter.span()] * len(part)
    return "".join(parts), places


def runs_in(folded: str) -> Iterator[tuple[str, int, int]]:
    """Yields (run, start, end) for each run of words in a folded text: the shortest from each word forwards, and the
    shortest from each word backwards, of at least RUN_WORDS words with RUN_BYTES bytes of UTF-8 in total. The run is
    written without punctuation.

    If a text quotes some words of another text, runs that both have cover all quoted words, unless these are too few
    for a run.
    """
    words = [(match[0], *match.span()) for match in _WORD.finditer(folded)]
    sizes = [len(word.encode(errors="replace")) for word, _, _ in words]
    count = len(words)
    backwards = ((count - end, count - first) for first, end in _shortest(sizes[::-1]))
    for first, end in {*_shortest(sizes), *backwards}:
        yield " ".join(word for word, _, _ in words[first:end]), words[first][1], words[end - 1][2]


def _shortest(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of the shortest run from each word on; none for the last words, which are too few."""
    end = size = 0
    for first, own in enumerate(sizes):
        while end < len(sizes) and (end - first < RUN_WORDS or size < RUN_BYTES):
            size += sizes[end]
            end += 1
        if end - first < RUN_WORDS or size < RUN_BYTES:
            return
        yield first, end
        size -= own


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the spans in order, with overlapping ones joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
