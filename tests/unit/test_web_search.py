"""Searches of the web: SearXNG's JSON API over HTTP, and pages at hand."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.searxng import SearXNG
from turnlog.agent.team.web_search import Page


@contextmanager
def answering(body: Any, status: int = 200) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """A server that answers every request with this JSON; its URL and the queries that came."""
    queries = list[dict[str, list[str]]]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            queries.append(parse_qs(urlsplit(self.path).query))
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", queries
        finally:
            server.shutdown()
            thread.join()


async def test_results_of_searxng_become_pages() -> None:
    results = [
        {"title": "Visa news", "url": "https://a.example", "content": "x" * 5000, "engine": "e"},
        {"title": None, "url": "https://b.example"},
        {"title": "no address"},
        {"title": "Third", "url": "https://c.example", "content": "c"},
    ]
    with answering({"query": "q", "results": results}) as (url, queries):
        found = await SearXNG(url).search("visa rules", None, 3)
        await SearXNG(url).search("deadline", "Larkfield University", 3)
    assert found == [Page("Visa news", "https://a.example", "x" * 1000), Page("", "https://b.example", "")]
    assert queries[0] == {"q": ["visa rules"], "format": ["json"]}
    assert queries[1]["q"] == ['"Larkfield University" deadline']


async def test_another_answer_than_searxngs_is_an_error() -> None:
    with answering({"hits": []}) as (url, _), pytest.raises(ValueError, match="is this a SearXNG"):
        await SearXNG(url).search("visa", None, 3)
    with answering({}, status=403) as (url, _), pytest.raises(httpx2.HTTPStatusError):
        await SearXNG(url).search("visa", None, 3)


async def test_pages_at_hand_are_found_by_their_words_within_a_site() -> None:
    pages = [
        (None, Page("Bread", "b", "flour and water")),
        ("shop", Page("Opening", "o", "open on water day")),
        ("shop", Page("Prices", "p", "flour costs 2")),
    ]
    local = LocalPages("three pages", pages)
    found = [page.title for page in await local.search("flour water", None, 5)]
    assert found[0] == "Bread" and sorted(found) == ["Bread", "Opening", "Prices"]
    assert [page.title for page in await local.search("Flour?", "shop", 5)] == ["Prices"]
    assert await local.search("zebra", None, 5) == []
    assert await LocalPages("none", []).search("flour", None, 5) == []
