"""Searches the web with SearXNG's JSON API (docs.searxng.org/dev/search_api)."""

from dataclasses import dataclass
from typing import Any

import httpx2

from turnlog.agent.team.web_search import Page

TIMEOUT_S = 10.0
MOST_CHARS = 1_000  # maximum characters of a result's text


@dataclass(frozen=True, slots=True)
class SearXNG:
    """Searches the web through a SearXNG server. url: an instance whose settings allow the format `json`."""

    url: str

    @property
    def about(self) -> str:
        return "the web"

    async def search(self, query: str, site: str | None, limit: int) -> list[Page]:
        """Returns the instance's results in its order. site: a name that results should contain. Raises
        httpx2.HTTPError, and ValueError for a response that is not SearXNG's."""
        wanted = query if site is None else f'"{site}" {query}'
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:
            answer = await client.get(f"{self.url.rstrip('/')}/search", params={"q": wanted, "format": "json"})
        answer.raise_for_status()
        body = answer.json()
        if not isinstance(body, dict) or not isinstance(body.get("results"), list):
            raise ValueError("the answer has no results; is this a SearXNG that allows the format json?")
        return [_page(result) for result in body["results"][:limit] if isinstance(result, dict) and result.get("url")]


def _page(result: dict[str, Any]) -> Page:
    return Page(str(result.get("title") or ""), str(result["url"]), str(result.get("content") or "")[:MOST_CHARS])
