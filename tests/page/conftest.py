"""A browser for the tests of the page, where one is found; one process for all of them."""

from collections.abc import AsyncIterator

import pytest
from helpers.browser import opened_browser
from helpers.chromium import CHROMIUM, NO_BROWSER
from playwright.async_api import Browser


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    async with opened_browser() as found:
        yield found
