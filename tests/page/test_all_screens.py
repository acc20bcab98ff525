"""On every screen axe finds nothing serious in both themes, hostile texts stay text, and long lists stay small."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from helpers.api import Api
from helpers.browser import signed_in
from helpers.sample_events import derivation, event
from helpers.stage import MemoryServer
from keyboard import walk
from playwright.async_api import Browser, Page, expect

from turnlog.agent.memory.entities import EntityInput, add_entity
from turnlog.events.contracts import SummaryWritten, TopicsTagged

THREAD = "demo"
FEW_TABS = 4  # a walk over an entire screen is done only with --nightly
# The address and a selector that shows that the screen is rendered. Screens of a conversation show this conversation.
SCREENS = {
    "#/threads": ".thread-row",
    f"#/threads/{THREAD}": ".turn",
    f"#/threads/{THREAD}/context": ".message",
    f"#/threads/{THREAD}/summary": ".summary-text",
    f"#/threads/{THREAD}/events": ".event-row",
    "#/memories": ".memory-row",
    "#/memories?view=profile": ".profile li",
    "#/memories?view=entities": ".node",
    "#/recall?q=museum": ".hit",
    "#/runs": ".run-row",
    "#/runs/RUN": ".axis-row",
    "#/events": ".event-row",
    "#/operation": ".lag-row",
    "#/privacy": ".tile",
    "#/access": ".switch",
}
# The address, the element that opens a panel, and the open panel. Escape closes an aside and a dialog.
PANELS = (
    (f"#/threads/{THREAD}", ".turn-seen >> nth=-1", "aside"),
    (f"#/threads/{THREAD}", ".turn-redact button >> nth=0", "dialog"),
    (f"#/threads/{THREAD}/context", ".segments button >> nth=1", ".compare-sides"),
    (f"#/threads/{THREAD}/summary", ".segments button >> nth=1", ".summary-text ins"),
    ("#/threads", ".thread-actions button >> nth=0", "dialog"),
    ("#/memories", ".memory-row >> nth=0", "aside"),
    ("#/memories", ".head button.primary", "dialog"),
    ("#/memories?view=entities", ".node >> nth=1", ".graph-detail h2"),
    ("#/recall?q=museum", ".hit footer button >> nth=0", ".neighbours"),
    ("#/runs/RUN", ".axis-row >> nth=0", ".axis-details"),
    ("#/events", ".event-row >> nth=0", "aside"),
    ("#/operation", ".head .segments button >> nth=1", ".plot canvas"),
    ("#/privacy", "button.danger", "dialog"),
    ("#/access", ".screen button >> nth=0", "dialog"),
    ("#/access", "table .icon-button >> nth=0", "dialog"),
)
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '<img src="https://evil.example/x.png" onerror="window.hacked = 1">',
    "[open](javascript:window.hacked=1) ![x](https://evil.example/y.png)",
    "\x1b[2J\x1b]0;owned\x07 \u202egpj.exe\u202c \u2066hidden\u2069",
    "{{constructor.constructor('window.hacked = 1')()}} ${window.hacked = 1} </textarea></title><svg onload=hacked=1>",
)
SERIOUS = """async options => (await axe.run({resultTypes: ["violations"], preload: false, ...options})).violations
  .filter(({impact}) => impact === "serious" || impact === "critical")
  .map(({id, nodes}) => `${id} ${nodes.slice(0, 3).map(node => node.target)}`)"""
THEMES = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}  # the rules that axe checks


async def fill(api: Api, texts: list[str], model: MemoryServer) -> str:
    """Adds a conversation with these texts, an answer with a tool, a summary, memories and entities (all museums).
    Returns the id of the answer's run."""
    model.reply("I look. " + texts[0], tool_calls=[("web_search", {"query": f"museum {texts[0]}"})])
    model.reply("An answer about the museum. " + texts[0])
    async with api.client() as ann:
        await ann.post("/api/threads", json={"thread": THREAD, "label": texts[0]})
        turns = [{"role": ("user", "assistant")[at % 2], "content": f"museum {text}"} for at, text in enumerate(texts)]
        assert (await ann.post(f"/api/threads/{THREAD}/turns", json={"turns": turns})).status_code == 201
        asked = await ann.post(f"/api/threads/{THREAD}/answers", json={"message": "Which museum?"})
        assert asked.status_code == 201, asked.text
        for text in texts:
            made = await ann.post("/api/memories", json={"content": f"museum {text}"[:900]})
            assert made.status_code == 201, made.text
        run = (await ann.get("/api/runs")).json()["items"][0]
    envelope = {"thread": asked.json()["thread"], "user": "ann", "tenant": api.tenant}
    for text in texts[:2]:
        written = SummaryWritten(summary=f"museum {text}", message_count=2, covered_seq=2, derivation=derivation(1, 2))
        await api.runtime.log.append(event(written, **envelope))
    await api.runtime.log.append(event(TopicsTagged(topics={texts[0]: 2}, derivation=derivation(1, 2)), **envelope))
    where = (api.runtime, api.tenant, "ann")
    await add_entity(*where, EntityInput("PLACE", f"museum {texts[0]}"[:200], attributes={"note": texts[-1]}))
    return str(run["run_id"])


async def screens(page: Page, run: str) -> AsyncIterator[str]:
    for where, drawn in SCREENS.items():
        await page.evaluate("where => { location.hash = where }", where.replace("RUN", run))
        await expect(page.locator(drawn).first).to_be_visible()
        yield where


async def test_axe_finds_nothing_serious_on_any_screen_in_both_themes_and_tab_is_followed(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    run = await fill(api, ["The museum opens at ten.", "Good to know: **ten**."], model)
    wrong = []
    async with signed_in(browser, api, role="admin") as page:
        await page.evaluate(AXE_SCRIPT)
        async for where in screens(page, run):
            wrong += [*await serious(page, where), *await walk(page, where, FEW_TABS)]
        where, opener, opened = PANELS[0]
        await page.evaluate("where => { location.hash = where }", where)
        await page.locator(opener).press("Enter")
        await expect(page.locator(opened)).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator(opened)).to_have_count(0)
        await expect(page.locator(opener)).to_be_focused()
    assert wrong == []


async def serious(page: Page, where: str) -> list[str]:
    wrong = []
    for theme, rules in THEMES.items():
        await page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        wrong += [f"{theme} {where}: {problem}" for problem in await page.evaluate(SERIOUS, rules)]
    return wrong


@pytest.mark.nightly  # axe takes a second for each screen
async def test_axe_finds_nothing_serious_in_opened_panels(browser: Browser, api: Api, model: MemoryServer) -> None:
    run = await fill(api, ["The museum opens at ten.", "Good to know: **ten**."], model)
    async with api.client() as ann:
        model.reply("Another answer about the museum.")
        assert (await ann.post(f"/api/threads/{THREAD}/answers", json={"message": "And now?"})).status_code == 201
        for memory in (await ann.get("/api/memories")).json()["items"]:
            changed = {"content": f"{memory['content']} Or so."}
            assert (await ann.put(f"/api/memories/{memory['id']}/content", json=changed)).status_code == 200
    wrong = []
    async with signed_in(browser, api, role="admin") as page:
        await page.evaluate(AXE_SCRIPT)
        for where, opener, opened in PANELS:
            await page.evaluate("where => { location.hash = where }", where.replace("RUN", run))
            await page.locator(opener).press("Enter")
            await expect(page.locator(opened).first).to_be_visible()
            if opened == "aside":
                await expect(page.locator("aside .loading")).to_have_count(0)
            wrong += await serious(page, f"{where} {opener}")
            await page.keyboard.press("Escape")
    assert wrong == []


async def test_hostile_texts_stay_text_on_every_screen_and_fit_a_phone(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    run = await fill(api, [*HOSTILE, "word" * 250_000], model)
    async with signed_in(browser, api, role="admin", width=360, language="zh") as page:
        async for where in screens(page, run):
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
