"""Debian's Chromium on the page of a test's own server, for tests of what a person sees and does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from helpers.api import Api
from helpers.chromium import CHROMIUM
from playwright.async_api import Browser, Page, async_playwright, expect

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 30_000  # a busy machine draws late
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
    """Yields the page at an address, for a user, in a context of its own. At the end no script may have failed,
    the content security policy stopped nothing, and no request went to another origin."""
    context = await browser.new_context(viewport={"width": width, "height": 820}, locale="en-GB")
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    page.on("request", lambda sent: wrong.append(sent.url) if not sent.url.startswith((api.url, "data:")) else None)
    token = api.token(user, role=role)
    async with httpx2.AsyncClient(timeout=60) as client:
        caller = await client.get(f"{api.url}/api/caller", headers={"Authorization": f"Bearer {token}"})
    kept = {"turnlog.session": {"token": token, "caller": caller.json()}, "turnlog.language": language}
    await page.goto(f"{api.url}/page/icon.svg")
    await page.evaluate(
        "kept => { for (const [key, value] of Object.entries(kept)) sessionStorage.setItem(key, value) }",
        {key: json.dumps(value) for key, value in (kept | {"turnlog.theme": theme}).items()},
    )
    await page.goto(f"{api.url}/page/{where}")
    yield page
    await context.close()
    assert wrong == []
