"""The conversation screen shows a streaming answer, its tools, and the model's context."""

import threading

from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from playwright.async_api import Browser, Route, expect


async def test_an_answer_is_shown_token_by_token_and_links_to_its_context(
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


async def test_a_stopped_answer_ends_with_the_text_so_far(browser: Browser, api: Api, model: MemoryServer) -> None:
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
        await page.evaluate("location.hash = '#/runs'")
        await expect(page.locator(".run-row .badge")).to_have_text("Stopped")


async def test_a_reader_who_leaves_finds_the_whole_answer_later(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
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


async def test_a_question_is_asked_once_more_after_a_refusal_and_a_lost_connection(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    async def lose(route: Route) -> None:
        await route.fetch()
        await route.abort()

    async def questions() -> list[str]:
        turns = (await ann.get("/api/threads/dogs/turns")).json()["items"]
        return [turn["content"] for turn in turns if turn["role"] == "user"]

    agent, stream = "/admin/ai-agent/agents/orchestrator/toggle", "**/answers/stream"
    async with api.client() as ann, api.client("root", role="admin") as root:
        await root.put(agent, json={"enabled": False})
        async with signed_in(browser, api, "#/threads/dogs", language="zh") as page:
            await page.get_by_role("textbox", name="输入消息").fill("What is my dog called?")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_contain_text("这个智能体已停用")
            await expect(page.locator(".turn.user")).to_have_count(1)
            await expect(page.locator(".turn.assistant")).to_have_count(0)

            await root.put(agent, json={"enabled": True})
            model.reply("Sesame.")
            await page.route(stream, lose)
            await page.get_by_role("button", name="重试").click()
            await expect(page.get_by_role("alert")).to_contain_text("服务器没有响应")
            await page.unroute(stream, lose)
            await page.get_by_role("button", name="重试").click()
            await expect(page.get_by_role("alert")).to_have_count(0)
            await expect(page.locator(".turn.assistant .markdown")).to_have_text("Sesame.")
            await expect(page.locator(".turn.user")).to_have_count(1)
        assert await questions() == ["What is my dog called?"]


async def test_a_question_whose_answer_failed_is_asked_again(browser: Browser, api: Api, model: MemoryServer) -> None:
    model.fail(400)
    async with signed_in(browser, api, "#/threads/dogs") as page:
        await page.get_by_role("textbox", name="Write a message").fill("What is my dog called?")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("scripted failure")
        await expect(page.locator(".cursor")).to_have_count(0)
        model.reply("Sesame.")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".turn.assistant .markdown")).to_have_text("Sesame.")
        await expect(page.get_by_role("alert")).to_have_count(0)
        await expect(page.locator(".turn.user")).to_have_count(2)


async def test_words_of_a_turn_are_redacted_after_their_places_were_shown(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        said = ["My password is Zebrafish-77.", "Never share Zebrafish-77."]
        turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), said, strict=True)]
        await ann.post("/api/threads/secrets/turns", json={"turns": turns})
    async with signed_in(browser, api, "#/threads/secrets") as page:
        await page.get_by_role("button", name="Redact this turn").first.press("Enter")
        dialog = page.get_by_role("dialog", name="Redact this turn")
        await dialog.get_by_role("textbox").fill("Zebrafish-77")
        await page.keyboard.press("Enter")
        await expect(dialog).to_contain_text("It stands in 2 events")
        await dialog.get_by_role("button", name="Strike it").click()
        await expect(dialog.get_by_role("region", name="Receipt")).to_contain_text("Nothing left")
        await page.keyboard.press("Escape")
        await expect(page.locator(".turn .said")).to_have_text("My password is [redacted].")
        await expect(page.locator(".turn.assistant .markdown")).to_have_text("Never share [redacted].")
