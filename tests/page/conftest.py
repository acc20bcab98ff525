"""Starts one browser, one pair of servers and one API for all tests of the page; each test has a separate tenant."""

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.api import Api, server
from helpers.browser import opened_browser
from helpers.chromium import CHROMIUM, NO_BROWSER
from helpers.own_servers import own_servers
from helpers.prepared_home import copy_database
from helpers.stage import MemoryServer
from playwright.async_api import Browser


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    async with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def model_of_all() -> Iterator[MemoryServer]:
    with MemoryServer() as running:
        yield running


@pytest.fixture(scope="session")
async def api_of_all(
    browser: Browser, prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, model_of_all: MemoryServer
) -> AsyncIterator[Api]:
    """Starts separate servers, because tests of other folders empty the servers of their worker. browser: required, so
    that nothing starts without a browser."""
    folder = tmp_path_factory.mktemp("page")
    async with own_servers(copy_database(prepared_home, folder / "home")) as servers:
        serve = server(servers.where.nats_url, servers.where.database_url, folder)
        options = {"api_base_url": model_of_all.url, "model": "m", "team": "advising", "topic_extraction": False}
        async with serve("agent", **options) as running:
            yield running


@pytest.fixture
def model(model_of_all: MemoryServer) -> Iterator[MemoryServer]:
    """Yields the model server; a test must use all replies that it scripted."""
    yield model_of_all
    assert model_of_all.take_replies() == []


@pytest.fixture
def api(api_of_all: Api) -> Api:
    """Returns the API for a tenant without data."""
    return replace(api_of_all, tenant=uuid.uuid4().hex)
