"""Every screen: axe finds nothing serious in both themes; hostile texts stay text; long lists are short documents."""

import asyncio
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from playwright.async_api import Browser, Page, expect

from turnlog.agent.memory.entities import EntityInput, add_entity

THREAD = "demo"
# Address and what shows that the screen is drawn. Screens of a conversation are of this one.
SCREENS = {
    "#/threads": ".thread-row",
    f"#/threads/{THREAD}": ".turn",
    f"#/threads/{THREAD}/context": ".message",
    "#/memories": ".memory-row",
    "#/memories?view=entities": ".node",
    "#/recall?q=museum": ".hit",
    f"#/threads/{THREAD}/events": ".event-row",
    "#/runs": ".empty",
    "#/operation": ".lag-row",
    "#/privacy": ".tile",
    "#/access": ".switch",
}
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '<img src="https://evil.example/x.png" onerror="window.hacked = 1">',
    "[open](javascript:window.hacked=1) ![x](https://evil.example/y.png)",
    "\x1b[2J\x1b]0;owned\x07 \u202egpj.exe\u202c \u2066hidden\u2069",
    "{{constructor.constructor('window.hacked = 1')()}} ${window.hacked = 1} </textarea></title><svg onload=hacked=1>",
)


async def fill(api: Api, texts: list[str], model: MemoryServer) -> None:
    """A conversation with these texts, an answer, memories and entities, all of them museums."""
    model.reply("An answer about the museum. " + texts[0])
    async with api.client() as ann:
        await ann.post("/api/threads", json={"thread": THREAD, "label": texts[0]})
        turns = [{"role": ("user", "assistant")[at % 2], "content": f"museum {text}"} for at, text in enumerate(texts)]
        assert (await ann.post(f"/api/threads/{THREAD}/turns", json={"turns": turns})).status_code == 201
        assert (await ann.post(f"/api/threads/{THREAD}/answers", json={"message": "Which museum?"})).status_code == 201
        for text in texts:
            made = await ann.post("/api/memories", json={"content": f"museum {text}"[:900]})
            assert made.status_code == 201, made.text
    place = (api.runtime, api.runtime.settings.tenant, "ann")
    await add_entity(*place, EntityInput("PLACE", f"museum {texts[0]}"[:200], attributes={"note": texts[-1]}))


async def screens(page: Page) -> Any:
    for where, drawn in SCREENS.items():
        await page.evaluate("where => { location.hash = where }", where)
        await expect(page.locator(drawn).first).to_be_visible()
        yield where


async def test_axe_finds_nothing_serious_on_any_screen_in_both_themes(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    await fill(api, ["The museum opens at ten.", "Good to know: **ten**."], model)
    found = []
    for theme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        async with signed_in(browser, api, role="admin", theme=theme) as page:
            async for where in screens(page):
                for violation in (await Axe().run(page, options=rules)).response["violations"]:
                    if violation["impact"] in ("serious", "critical"):
                        places = [node["target"] for node in violation["nodes"][:3]]
                        found.append(f"{theme} {where}: {violation['id']} {places}")
    assert found == []


async def test_hostile_texts_stay_text_on_every_screen_and_fit_a_phone(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    await fill(api, [*HOSTILE, "word" * 250_000], model)
    async with signed_in(browser, api, role="admin", width=360, language="zh") as page:
        async for where in screens(page):
            assert await page.evaluate("window.hacked") is None, where
            made = "img:not([src='icon.svg']), main script, main iframe, a[href^='javascript' i], [onerror], [onload]"
            assert await page.locator(made).count() == 0, where
            acting = await page.evaluate(
                r"() => /[\x00-\x08\x0e-\x1f\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)"
            )
            assert not acting, where
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{where} is too wide"


@pytest.mark.nightly
async def test_ten_thousand_memories_and_turns_are_scrolled_in_a_short_document(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        for begin in range(0, 10_000, 500):
            turns = [{"role": "user", "content": f"turn {begin + at}"} for at in range(500)]
            assert (await ann.post("/api/threads/long/turns", json={"turns": turns})).status_code == 201
        await asyncio.gather(
            *(ann.post("/api/threads", json={"thread": f"t{at}", "label": f"t {at}"}) for at in range(300))
        )
    async with signed_in(browser, api) as page:
        await expect(page.locator(".thread-row").first).to_be_visible()
        for _ in range(12):
            await page.locator(".windowed").evaluate("list => { list.scrollTop = list.scrollHeight }")
            await page.wait_for_load_state("networkidle")
        assert await page.locator(".thread-row").count() < 60
        await page.evaluate("location.hash = '#/threads/long'")
        await expect(page.locator(".turn").last).to_contain_text("turn 9999")
        assert await page.locator(".turn").count() <= 60
