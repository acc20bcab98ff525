"""Takes pictures of the page for docs/page/: python tests/page/pictures.py [NAME …]

It starts and fills a server, and shows each screen, or the named ones, in both languages and themes. Look at each
picture before you commit it.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from playwright.async_api import Page

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.api import Api
from helpers.browser import opened_browser, signed_out
from shown import filled_server

from turnlog.agent.operations.sample import THREAD, USER

FOLDER = Path(__file__).parents[2] / "docs" / "page"
OF_THREAD = f"#/threads/{THREAD}"
CHAIN = ".memory-row:has-text('52,000')"  # a fact that changed twice
# The address, and the element to click: the first or last of a selector.
SCREENS: dict[str, tuple[str, str]] = {
    "threads": ("#/threads", ""),
    "chat": (OF_THREAD, ".turn-seen >> nth=-1"),
    "context": (f"{OF_THREAD}/context", ".context-fields .segments button >> nth=4"),  # 16,000 tokens
    "receipt": (f"{OF_THREAD}/context", ".as-of-mark >> nth=-1"),
    "compare": (f"{OF_THREAD}/context", ".screen > .row .segments button >> nth=1"),
    "summary": (f"{OF_THREAD}/summary", ""),
    "memories": ("#/memories", ".memory-row >> nth=1"),
    "chain": ("#/memories", CHAIN),
    "entities": ("#/memories?view=entities", ""),
    "recall": ("#/recall?q=What+is+my+dog+called%3F", ""),
    "runs": ("#/runs", ""),
    "run": ("#/runs", ".run-row >> nth=-1"),
    "events": ("#/events", ".event-row >> nth=2"),
    "operation": ("#/operation", ""),
    "usage": ("#/operation", ".head .segments button >> nth=1"),
    "activity": ("#/operation", ".head .segments button >> nth=2"),
    "privacy": ("#/privacy", ""),
    "access": ("#/access", ""),
}


async def main(names: Sequence[str]) -> None:
    wanted = {name: screen for name, screen in SCREENS.items() if not names or name in names}
    with tempfile.TemporaryDirectory() as folder:
        async with filled_server(Path(folder) / "home") as api, opened_browser() as browser:
            page = await signed_out(browser, api)
            await page.set_viewport_size({"width": 1180, "height": 740})
            async with api.client(USER, role="admin") as client:
                session = {
                    "token": api.token(USER, role="admin"),
                    "caller": (await client.get("/api/caller")).json(),
                }
            for language, theme in product(("en", "zh"), ("light", "dark")):
                stored = {"session": session, "language": language, "theme": theme}
                for key, value in stored.items():
                    await page.evaluate(
                        "([key, value]) => sessionStorage.setItem(key, value)", [f"turnlog.{key}", json.dumps(value)]
                    )
                for name, (where, clicked) in wanted.items():
                    await take(page, api, where, clicked, FOLDER / f"{name}-{language}-{theme}.png")


async def take(page: Page, api: Api, where: str, clicked: str, path: Path) -> None:
    await page.goto(f"{api.url}/page/icon.svg")
    await page.goto(f"{api.url}/page/{where}")
    await page.locator("main h1").wait_for()
    await page.wait_for_timeout(2_000)  # because streams of events keep the network busy
    if clicked:
        await page.locator(clicked).click()
        if clicked == CHAIN:
            await page.locator(".chain").scroll_into_view_if_needed()
        await page.wait_for_timeout(1_500)
    await page.screenshot(path=path)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
