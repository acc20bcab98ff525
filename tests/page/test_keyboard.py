"""On every screen the keyboard reaches all actions, the focus is visible, and Escape closes panels."""

import pytest
from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from keyboard import walk
from playwright.async_api import Browser, expect
from test_all_screens import PANELS, fill, screens


@pytest.mark.nightly
async def test_every_action_is_reached_by_keyboard_and_escape_closes_panels(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    run = await fill(api, ["The museum opens at ten.", "Good to know: **ten**."], model)
    async with signed_in(browser, api, role="admin") as page:
        wrong = []
        async for where in screens(page, run):
            await page.wait_for_load_state("networkidle") if where != "#/events" else None
            wrong += await walk(page, where)
        for where, opener, opened in (panel for panel in PANELS if panel[2] in ("aside", "dialog")):
            await page.evaluate("where => { location.hash = where }", where)
            await page.locator(opener).press("Enter")
            await expect(page.locator(opened).first).to_be_visible()
            await page.keyboard.press("Escape")
            await expect(page.locator(opened)).to_have_count(0)
            if not await page.locator(opener).evaluate("element => element === document.activeElement"):
                wrong.append(f"{where}: the focus does not return to {opener}")
    assert wrong == []
