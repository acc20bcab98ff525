"""Tests web search with SearXNG's JSON API over HTTP, and with given pages."""

import uuid
from datetime import UTC, datetime
from typing import cast

import httpx2
import pytest
from helpers.json_server import answering

from turnlog.agent.team.advising import advising_tools
from turnlog.agent.team.advising.web import sample_pages
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.plans import Result
from turnlog.agent.team.searxng import SearXNG
from turnlog.agent.team.teams import bundled_team
from turnlog.agent.team.tools import Records, Use
from turnlog.agent.team.web_search import Page, WebSearch

NO_RECORDS = cast(Records, None)  # a search reads no records


async def test_results_of_searxng_become_pages() -> None:
    results = [
        {"title": "Visa news", "url": "https://a.example", "content": "x" * 5000, "engine": "e"},
        {"title": None, "url": "https://b.example"},
        {"title": "no address"},
        {"title": "Third", "url": "https://c.example", "content": "c"},
    ]
    with answering({"query": "q", "results": results}) as (url, queries):
        pages = await SearXNG(url).search("visa rules", None, 3)
        await SearXNG(url).search("deadline", "Larkfield University", 3)
    assert pages == [Page("Visa news", "https://a.example", "x" * 1000), Page("", "https://b.example", "")]
    assert queries[0] == {"q": ["visa rules"], "format": ["json"]}
    assert queries[1]["q"] == ['"Larkfield University" deadline']


async def test_an_answer_in_another_format_than_searxngs_is_an_error() -> None:
    with answering({"hits": []}) as (url, _), pytest.raises(ValueError, match="is this a SearXNG"):
        await SearXNG(url).search("visa", None, 3)
    with answering({}, status=403) as (url, _), pytest.raises(httpx2.HTTPStatusError):
        await SearXNG(url).search("visa", None, 3)


async def test_given_pages_are_found_by_their_words_within_a_site() -> None:
    pages = [
        (None, Page("Bread", "b", "flour and water")),
        ("shop", Page("Opening", "o", "open on water day")),
        ("shop", Page("Prices", "p", "flour costs 2")),
    ]
    local = LocalPages("three pages", pages)
    titles = [page.title for page in await local.search("flour water", None, 5)]
    assert titles[0] == "Bread" and sorted(titles) == ["Bread", "Opening", "Prices"]
    assert [page.title for page in await local.search("Flour?", "shop", 5)] == ["Prices"]
    assert await local.search("zebra", None, 5) == []
    assert await LocalPages("none", []).search("flour", None, 5) == []


async def test_a_school_that_is_not_in_the_sample_is_searched_on_the_web_only() -> None:
    async def result(web: WebSearch, name: str) -> Result:
        use = Use("ann", datetime(2026, 9, 1, tzinfo=UTC), uuid.uuid4(), NO_RECORDS, web)
        arguments = {"schoolName": name, "query": "deadline"}
        return await advising_tools().call(bundled_team().agents["school"], "search_school_website", arguments, use)

    with answering({"results": [{"title": "Apply", "url": "https://a.example", "content": "x"}]}) as (url, queries):
        for name in ("College Board", "s01"):
            assert (await result(SearXNG(url), name)).value["results"][0]["title"] == "Apply"
        assert (await result(SearXNG(url), " ")).is_error
    assert [query["q"] for query in queries] == [['"College Board" deadline'], ['"Larkfield University" deadline']]
    refused = await result(sample_pages(), "College Board")
    assert refused.is_error and "there is no school 'College Board'" in refused.value["error"]
