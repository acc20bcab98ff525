"""Defines the interface of a web search for tools."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Page:
    """A web page that a search found."""

    title: str
    url: str
    text: str


class WebSearch(Protocol):
    """A web search. about: what is searched, such as "sample pages"; the model is told this."""

    @property
    def about(self) -> str: ...

    async def search(self, query: str, site: str | None, limit: int) -> list[Page]:
        """Returns pages for a query, best first. site: name of the site, such as a school, whose pages are wanted."""
        ...
