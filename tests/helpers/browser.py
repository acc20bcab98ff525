"""Opens the web page of a test's server in Debian's Chromium, for tests of what a person sees and does."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from helpers.api import Api
from helpers.chromium import CHROMIUM
from playwright.async_api import Browser, Page, async_playwright, expect

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
HEIGHT = 820
PATIENCE_MS = 30_000  # a busy machine renders late
expect.set_options(timeout=PATIENCE_MS)


@asynccontextmanager
async def opened_browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@asynccontextmanager
async def signed_in(
    browser: Browser,
    api: Api,
    where: str = "#/threads",
    *,
    user: str = "ann",
    role: str = "user",
    language: str = "en",
    theme: str = "light",
    width: int = 1280,
) -> AsyncIterator[Page]:
    """Yields the page at an address, signed in as a user.

    At the end fails if a script failed, the content security policy blocked something, or a request went to another
    origin."""
    page = await signed_out(browser, api)
    wrong: list[str] = []
    listeners: list[tuple[Any, Callable[[Any], None]]] = [
        ("pageerror", lambda error: wrong.append(str(error))),
        ("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None),
        ("request", lambda sent: wrong.append(sent.url) if not sent.url.startswith((api.url, "data:")) else None),
    ]
    for happening, listener in listeners:
        page.on(happening, listener)
    async with api.client(user, role=role) as client:
        session = {"token": api.token(user, role=role), "caller": (await client.get("/api/caller")).json()}
    stored = {"turnlog.session": session, "turnlog.language": language, "turnlog.theme": theme}
    await page.evaluate(
        "stored => { for (const [key, value] of Object.entries(stored)) sessionStorage.setItem(key, value) }",
        {key: json.dumps(value) for key, value in stored.items()},
    )
    await page.set_viewport_size({"width": width, "height": HEIGHT})
    await page.goto(f"{api.url}/page/{where}")
    try:
        yield page
    finally:
        for happening, listener in listeners:
            page.remove_listener(happening, listener)
    assert wrong == [], wrong


async def signed_out(browser: Browser, api: Api) -> Page:
    """Returns the browser's only tab, with an empty session storage. A new tab takes three times as long to open and
    has an empty cache."""
    if not browser.contexts:
        context = await browser.new_context(locale="en-GB")
        context.set_default_timeout(PATIENCE_MS)
        await context.new_page()
    page = browser.contexts[0].pages[0]
    await page.goto(f"{api.url}/page/icon.svg")  # the page's origin, without its scripts
    await page.evaluate("sessionStorage.clear()")
    return page
