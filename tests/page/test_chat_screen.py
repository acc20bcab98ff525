"""The conversation: an answer that streams, its tools, and what the model saw for it."""

import threading

from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from playwright.async_api import Browser, expect


async def test_an_answer_is_seen_token_by_token_and_opens_what_the_model_saw(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    goes_on = threading.Event()
    async with api.client() as ann:
        await ann.post("/api/memories", json={"content": "Ann's corgi is called Sesame."})
    model.reply(tool_calls=[("recall_memory", {"query": "corgi"})])
    model.reply("Your corgi is called **Sesame**.", until=goes_on, after=3)
    async with signed_in(browser, api, "#/threads/dogs") as page:
        await page.get_by_role("textbox", name="Write a message").fill("What is my dog called?")
        await page.keyboard.press("Enter")
        answer = page.locator(".turn.assistant")
        await expect(answer.locator(".markdown")).to_have_text("Your corgi")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        goes_on.set()
        await expect(answer.locator(".markdown strong")).to_have_text("Sesame")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await expect(answer.locator(".call summary b")).to_have_text("recall_memory")
        await expect(answer.locator("header .badge")).to_have_text("Coordinator")

        await answer.get_by_role("button", name="What it saw").click()
        seen = page.get_by_role("complementary", name="What it saw")
        await expect(seen).to_contain_text("Ann's corgi is called Sesame.")
        await expect(seen).to_contain_text("Proven")


async def test_a_stopped_answer_ends_with_what_was_said(browser: Browser, api: Api, model: MemoryServer) -> None:
    goes_on = threading.Event()
    model.reply(tool_calls=[("recall_memory", {"query": "numbers"})])
    model.reply("one two three four five", until=goes_on, after=2)
    async with signed_in(browser, api, "#/threads/count") as page:
        await page.get_by_role("textbox", name="Write a message").fill("count")
        await page.keyboard.press("Enter")
        answer = page.locator(".turn.assistant .markdown")
        await expect(answer).to_have_text("one")
        await page.keyboard.press("Escape")
        await expect(page.get_by_text("The answer was stopped here")).to_be_visible()
        goes_on.set()
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await expect(answer).to_have_text("one")


async def test_who_stops_reading_finds_the_whole_answer_later(browser: Browser, api: Api, model: MemoryServer) -> None:
    goes_on = threading.Event()
    model.reply(tool_calls=[("recall_memory", {"query": "numbers"})])
    model.reply("one two three four five", until=goes_on, after=2)
    async with signed_in(browser, api, "#/threads/count") as page:
        await page.get_by_role("textbox", name="Write a message").fill("count")
        await page.keyboard.press("Enter")
        answer = page.locator(".turn.assistant .markdown")
        await expect(answer).to_have_text("one")
        await page.route("**/cancel", lambda route: route.abort())
        await page.keyboard.press("Escape")
        await expect(page.get_by_text("You stopped reading")).to_be_visible()
        await page.unroute("**/cancel")
        goes_on.set()
        await page.get_by_role("button", name="Show it").click()
        await expect(answer).to_have_text("one two three four five")
