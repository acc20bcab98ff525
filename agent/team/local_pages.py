"""Searches local pages by words (BM25); used if no web search is configured."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from turnlog.agent.team.web_search import Page

K1, B = 1.2, 0.75
_WORD = re.compile(r"[a-z0-9]+|[\u4e00-\u9fff]", re.IGNORECASE)


class LocalPages:
    """A WebSearch over given pages, each with the name of its site. about: a description of the pages for the model."""

    def __init__(self, about: str, pages: Sequence[tuple[str | None, Page]]) -> None:
        self._about = about
        self._pages = [(site, page, Counter(_words(f"{page.title} {page.text}"))) for site, page in pages]
        self._in = Counter(word for *_, words in self._pages for word in words)
        self._mean = sum(words.total() for *_, words in self._pages) / max(1, len(self._pages))

    @property
    def about(self) -> str:
        return self._about

    async def search(self, query: str, site: str | None, limit: int) -> list[Page]:
        """Returns pages that contain a word of the query, best match first. site: only pages of this site."""
        asked = set(_words(query))
        rated = [
            (points, page)
            for known, page, words in self._pages
            if site in (None, known) and (points := self._points(asked, words)) > 0
        ]
        return [page for _, page in sorted(rated, key=lambda pair: -pair[0])[:limit]]

    def _points(self, asked: set[str], words: Counter[str]) -> float:
        """Returns the page's BM25 score (Robertson and Zaragoza, 2009)."""
        length = K1 * (1 - B + B * words.total() / self._mean)
        return sum(
            math.log(1 + (len(self._pages) - self._in[word] + 0.5) / (self._in[word] + 0.5))
            * words[word]
            * (K1 + 1)
            / (words[word] + length)
            for word in asked
            if words[word]
        )


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
