"""A walk by keyboard over every screen: all actions are reached, the focus is seen, Escape closes what was opened."""

import pytest
from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from playwright.async_api import Browser, Page, expect
from test_all_screens import THREAD, fill, screens

MOST_TABS = 250
# Marks what can be focused; returns how many there are, and what reacts to the mouse alone.
MARK = """() => {
  const seen = element => element.checkVisibility({visibilityProperty: true}) && element.getClientRects().length > 0;
  const able = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
    .filter(element => !element.disabled && element.tabIndex >= 0 && seen(element));
  able.forEach(element => { element.dataset.unreached = "" });
  const mouseOnly = [...document.querySelectorAll("main *")].filter(element => seen(element)
    && getComputedStyle(element).cursor === "pointer"
    && !element.closest("[data-unreached], label, summary, :disabled"));
  document.activeElement?.blur();
  return [able.length, mouseOnly.map(element => element.outerHTML.slice(0, 120))];
}"""
# Takes the mark from the focused element; returns how it is shown, "" where it is not.
STEP = """() => {
  const focused = document.activeElement;
  delete focused.dataset.unreached;
  const left = document.querySelectorAll("[data-unreached]").length;
  const shown = [focused, focused.firstElementChild, focused.closest(".composer-box, .segments")].filter(Boolean)
    .map(element => getComputedStyle(element)).some(style => style.outlineStyle !== "none"
      || style.boxShadow !== "none" || parseFloat(style.strokeWidth) > 2);
  return [left, shown || focused === document.body ? "" : focused.outerHTML.slice(0, 120)];
}"""
# Address, what opens something, and what Escape closes.
OPENED = (
    (f"#/threads/{THREAD}", ".turn-seen >> nth=-1", "aside"),
    ("#/threads", ".thread-actions button >> nth=0", "dialog"),
    ("#/memories", ".memory-row >> nth=0", "aside"),
    ("#/memories", ".head button.primary", "dialog"),
    ("#/events", ".event-row >> nth=0", "aside"),
    ("#/privacy", "button.danger", "dialog"),
    ("#/access", ".screen button >> nth=0", "dialog"),
)


async def walk(page: Page, where: str) -> list[str]:
    """Presses Tab until all that can be focused was; returns what is wrong."""
    count, mouse_only = await page.evaluate(MARK)
    wrong = [f"{where}: by mouse only: {element}" for element in mouse_only]
    for _ in range(min(count + 8, MOST_TABS)):
        await page.keyboard.press("Tab")
        left, unseen = await page.evaluate(STEP)
        wrong += [f"{where}: focus is not seen: {unseen}"] if unseen else []
        if not left:
            return wrong
    unreached = "() => [...document.querySelectorAll('[data-unreached]')].map(each => each.outerHTML.slice(0, 120))"
    return [*wrong, *(f"{where}: not reached: {each}" for each in await page.evaluate(unreached))]


@pytest.mark.nightly
async def test_every_action_is_reached_by_keyboard_and_escape_closes_what_was_opened(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    run = await fill(api, ["The museum opens at ten.", "Good to know: **ten**."], model)
    async with signed_in(browser, api, role="admin") as page:
        wrong = []
        async for where in screens(page, run):
            await page.wait_for_load_state("networkidle") if where != "#/events" else None
            wrong += await walk(page, where)
        for where, opener, opened in OPENED:
            await page.evaluate("where => { location.hash = where }", where)
            await page.locator(opener).press("Enter")
            await expect(page.locator(opened).first).to_be_visible()
            await page.keyboard.press("Escape")
            await expect(page.locator(opened)).to_have_count(0)
            if not await page.locator(opener).evaluate("element => element === document.activeElement"):
                wrong.append(f"{where}: the focus does not return to {opener}")
    assert wrong == []
