"""Hostile texts in all fields of screens, panels and dialogs stay text and fit a phone."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import hostile
import pytest
from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from playwright.async_api import Browser, Page
from playwright.async_api import TimeoutError as TookTooLong

THREAD = quote(hostile.THREAD, safe="")
OF_THREAD = f"#/threads/{THREAD}"
# The address, the elements to click one after the other, and the fields that then show a hostile text.
VISITS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "#/threads",
        (),
        (".who-words b", ".avatar ~ * b", ".thread-words b", ".thread-words .muted", ".thread-words .mono"),
    ),
    ("#/threads", (".thread-actions button >> nth=-1",), (".toast",)),
    ("#/threads", (".thread-actions button >> nth=-2",), ("dialog input",)),
    (
        OF_THREAD,
        (".turn-seen >> nth=-1",),
        (
            *(".thread-head h1", ".turn.user header b", ".turn.user .said", ".turn.assistant .markdown"),
            *(
                ".turn .other",
                ".turn header .badge",
                ".call summary b",
                ".call summary .mono",
                ".call pre",
                ".thinking p",
            ),
            ".seen",
        ),
    ),
    (OF_THREAD, (".turn-redact button >> nth=0",), ()),
    (
        f"{OF_THREAD}/context",
        (".as-of-mark >> nth=0",),
        (".message-text", ".context-facts .badge", ".as-of-mark"),
    ),
    (
        f"{OF_THREAD}/context",
        (".segments >> nth=0 >> button >> nth=1",),
        (".compare-choice option", ".compare-sides"),
    ),
    (f"{OF_THREAD}/summary", (), (".summary-text", ".facts dd", ".facts code", ".meter-label")),
    (f"{OF_THREAD}/summary", (".segments >> nth=0 >> button >> nth=1",), (".summary-text",)),
    (f"{OF_THREAD}/events", (".event-row >> nth=3",), (".event-gist", "aside pre")),
    (f"#/memories?user={THREAD}2", (), (".person input", ".head p")),
    (
        "#/memories",
        (".memory-row:has-text('edited') >> nth=0",),
        (".memory-words b", ".memory-content", ".chain-version", ".chain title"),
    ),
    (
        "#/memories",
        (f".memory-row:has-text('{hostile.NAME[:9]}'):has-text('x ') >> nth=-1",),
        (".memory-words .muted", ".memory-detail .badge", ".memory-detail .facts dd", ".quote p"),
    ),
    ("#/memories?view=profile", (), (".profile .memory-content", ".profile li a", ".profile bdi")),
    (
        "#/memories?view=entities",
        (".node >> nth=1",),
        (".node", ".graph-detail h2", ".graph-detail p", ".graph-detail dt", ".graph-detail dd"),
    ),
    (
        f"#/recall?q=museum+{THREAD}&thread={THREAD}",
        (".hit footer button >> nth=0",),
        (".hit-text", ".recall-form input", ".recall-form .badge", ".code code", ".neighbours .turn"),
    ),
    ("#/runs", (), (".run-words b", ".run-words .muted")),
    (
        "#/runs/RUN",
        (".axis-row >> nth=2",),
        (".axis-name .clip", ".axis-details pre", ".axis-details td b", ".axis-details td code", ".legend li"),
    ),
    ("#/events", (".event-row >> nth=0",), (".event-place", ".event-gist", "aside pre")),
    ("#/operation", (), ("td",)),
    ("#/operation", (".head .segments button >> nth=1",), ("td",)),
    ("#/privacy", (".danger-zone button",), ("h2", "dialog p")),
    ("#/access", (), (".facts dd", "td b", "td span", "section:last-child td b")),
    ("#/access", ("[aria-label^='修改'] >> nth=0",), ("dialog h2", "dialog input", "dialog textarea")),
    (f"#/runs/{THREAD}", (), ()),
    (f"#/memories?memory={THREAD}", (), ()),
)
SHOWN = """selector => [...document.querySelectorAll(selector)].some(element => [element.value, element.textContent,
  element.title, element.ariaLabel].some(text => String(text ?? "").includes("window.hacked")))"""
CLICK = "element => element.dispatchEvent(new MouseEvent('click', {bubbles: true}))"  # a menu may cover it
ACTING = r"() => /[\x00-\x08\x0e-\x1f\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)"
MADE = """img:not([src='icon.svg']), main script, main iframe,
  a[href^='javascript' i], [onerror], [onload]"""


async def opened(page: Page, run: str) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
    """Visits the screens, clicks the elements that open something, and yields the fields of each."""
    for where, clicked, fields in VISITS:
        await page.evaluate("where => { location.hash = where }", where.replace("RUN", run))
        for selector in clicked:
            await page.locator(selector).evaluate(CLICK)
        yield f"{where} {clicked}", fields
        await page.keyboard.press("Escape")


@pytest.mark.nightly  # every screen, panel and dialog; a short visit is in test_all_screens.py
async def test_hostile_texts_stay_text_in_every_field_of_every_screen_and_fit_a_phone(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    run = await hostile.fill(api, model)
    wrong = []
    async with signed_in(browser, api, user=hostile.USER, role="admin", width=360, language="zh") as page:
        async for where, fields in opened(page, run):
            for field in fields:
                try:
                    await page.wait_for_function(SHOWN, arg=field)
                except TookTooLong:
                    wrong.append(f"{where}: {field} shows no hostile text")
            checks = {
                "a script ran": await page.evaluate("window.hacked") is None,
                "texts became elements": await page.locator(MADE).count() == 0,
                "characters act": not await page.evaluate(ACTING),
                "it is too wide": await page.evaluate("document.documentElement.scrollWidth <= innerWidth"),
            }
            wrong += [f"{where}: {problem}" for problem, absent in checks.items() if not absent]
    assert wrong == []
