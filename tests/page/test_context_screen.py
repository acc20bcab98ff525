"""The context screen shows the parts of a model's window, other windows, past moments, and a comparison of answers."""

from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from playwright.async_api import Browser, expect

LONG = "about the museum " * 40


async def test_a_context_is_explored_by_window_and_moment_and_two_answers_are_compared(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    async with api.client() as ann:
        turns = [{"role": "user" if at % 2 == 0 else "assistant", "content": f"turn {at} {LONG}"} for at in range(24)]
        await ann.post("/api/threads/trip/turns", json={"turns": turns})
        for question, answer in (("When do we leave?", "In May."), ("Who comes along?", "Mia does.")):
            model.reply(answer)
            assert (await ann.post("/api/threads/trip/answers", json={"message": question})).status_code == 201
    async with signed_in(browser, api, "#/threads/trip/context") as page:
        bar = page.get_by_role("group", name="The context window to scale")
        messages = page.get_by_role("list", name="Messages").locator(".message")
        await expect(bar.get_by_role("button", name="All turns")).to_be_visible()
        everything = await messages.count()
        await page.get_by_role("button", name="4K").click()
        await expect(bar.get_by_role("button", name="Tier 3")).to_be_visible()
        assert await messages.count() <= everything
        await bar.get_by_role("button", name="Tier 3").hover()
        await expect(messages.first).to_have_class("message dim")
        await expect(messages.last).to_have_class("message ")
        await messages.last.hover()
        await expect(bar.get_by_role("button", name="Tier 3")).to_have_attribute("aria-pressed", "true")

        await bar.get_by_role("button", name="Tier 3").press("Enter")
        await expect(page.locator(".message:focus")).to_have_attribute("data-part", "3")
        await page.keyboard.press("ArrowUp")
        await expect(page.locator(".message:focus")).to_have_attribute("data-part", "2")
        await expect(bar.get_by_role("button", name="Tier 2")).to_have_attribute("aria-pressed", "true")
        await page.keyboard.press("Enter")
        await expect(bar.get_by_role("button", name="Tier 2")).to_be_focused()

        await page.get_by_role("button", name="Model’s own").click()
        await page.get_by_role("button", name="Answer of").first.click()
        await expect(messages.last).to_contain_text("When do we leave?")
        await expect(page.locator(".context-facts")).to_contain_text("Proven")

        await page.get_by_role("button", name="Compare two answers").click()
        second = page.locator(".compare-sides section").nth(1)
        await expect(second).to_contain_text("Who comes along?")
        await expect(page.locator(".compare-sides section").nth(0)).not_to_contain_text("Who comes along?")


async def test_a_list_that_scrolls_under_the_mouse_leaves_the_part_that_the_keyboard_chose(
    browser: Browser, api: Api
) -> None:
    async with api.client() as ann:
        turns = [{"role": ("user", "assistant")[at % 2], "content": f"turn {at} {LONG}"} for at in range(24)]
        await ann.post("/api/threads/trip/turns", json={"turns": turns})
    async with signed_in(browser, api, "#/threads/trip/context") as page:
        await page.get_by_role("button", name="4K").click()
        newest = page.get_by_role("group", name="The context window to scale").get_by_role("button", name="Tier 3")
        await expect(newest).to_be_visible()
        messages = page.get_by_role("list", name="Messages")
        await messages.locator(".message").last.hover()
        await messages.locator(".message").last.focus()
        await expect(newest).to_have_attribute("aria-pressed", "true")
        await messages.evaluate("list => { list.scrollTop = 0 }")
        await expect(messages.locator(".message:hover")).to_have_attribute("data-part", "2")
        await expect(newest).to_have_attribute("aria-pressed", "true", timeout=1_000)


async def test_a_chinese_reader_reads_why_a_turn_was_left_out(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        turns = [{"role": ("user", "assistant")[at % 2], "content": f"turn {at} {LONG}"} for at in range(24)]
        await ann.post("/api/threads/trip/turns", json={"turns": turns})
    async with signed_in(browser, api, "#/threads/trip/context", language="zh") as page:
        await page.get_by_role("button", name="2K", exact=True).click()
        await expect(page.locator(".remarks")).to_contain_text("比预算能容纳的更早")
