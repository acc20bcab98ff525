"""Searches of the web, as tools make them: pages that a provider found."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the web that a search found."""

    title: str
    url: str
    text: str


class WebSearch(Protocol):
    """Searches the web. about: what is searched, such as "sample pages", which the model is told."""

    @property
    def about(self) -> str: ...

    async def search(self, query: str, site: str | None, limit: int) -> list[Page]:
        """Returns pages for a query, best first. site: only pages of this school."""
        ...
