"""On the memories screen, memories are corrected, settled, rated, reverted and forgotten; also entities and recall."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from helpers.api import Api
from helpers.browser import signed_in
from helpers.sample_events import DERIVED, event
from helpers.stage import MemoryServer
from playwright.async_api import Browser, Page, expect

from turnlog.agent.access.idempotency import WriteUnderWay
from turnlog.agent.memory.entities import EntityInput, add_entity
from turnlog.agent.memory.memories import AmbiguousMemory
from turnlog.agent.memory.preferences import InvalidPreference
from turnlog.consumers.api.problems import problem_of, reader_language
from turnlog.events.contracts import EntitiesFound, Entity, ProfileWritten
from turnlog.events.subjects import memory_thread

# Reasons of the server, and the keys of their texts.
MISSING = {
    "keyword search only: nothing here has a vector of m yet": ["none_yet"],
    "words, entities and dates only: none of these memories has a vector of m yet": ["none_yet"],
    "keyword search only: the query's vector was not there after 1 s": ["slow"],
    "words, entities and dates only: vectors were left out": ["unused"],
    "keyword search only: connection refused; not reranked: timed out": ["failed", "not_reranked"],
    "chunks: being rebuilt for the current version of turnlog, without the newest turns so far": ["rebuilt"],
}


async def edit(page: Page, content: str) -> None:
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_role("dialog").get_by_role("textbox").fill(content)
    await page.get_by_role("button", name="Save").click()


async def test_the_next_answer_uses_a_corrected_memory(browser: Browser, api: Api, model: MemoryServer) -> None:
    async with api.client() as ann:
        for content in ("Ann's corgi is called Sesame.", "Ann's tram is the number 16."):
            await ann.post("/api/memories", json={"content": content})
        tier = (await ann.get("/api/memories")).json()["items"][0]["score"]["tier"]
    async with signed_in(browser, api, "#/memories") as page:
        rows, search = page.locator(".memory-row"), page.get_by_role("searchbox", name="Search memories")
        await expect(rows).to_have_count(2)
        await search.fill("corgi")
        await page.get_by_label("Ended too").check()
        await page.get_by_role("group", name="Memories by tier").get_by_role("button").press("Enter")
        await expect(page.get_by_role("combobox", name="Memories by tier")).to_have_value(tier)
        await page.get_by_role("button", name="Ann's corgi is called Sesame.").click()
        await edit(page, "Ann's corgi is called Pepper.")
        detail = page.get_by_role("complementary", name="Memory")
        await expect(detail.locator(".memory-content")).to_have_text("Ann's corgi is called Pepper.")
        await expect(detail.locator(".chain li")).to_have_count(2)
        await expect(rows).to_have_count(2)  # the search still applies: both versions, but not the tram
        await expect(rows.filter(has_text="corgi")).to_have_count(2)
        await expect(search).to_have_value("corgi")
        await expect(page.get_by_role("combobox", name="Memories by tier")).to_have_value(tier)

        model.reply("Pepper.")
        await page.evaluate("location.hash = '#/threads/dogs'")
        await page.get_by_role("textbox", name="Write a message").fill("What is my corgi called?")
        await page.keyboard.press("Enter")
        await page.locator(".turn.assistant").get_by_role("button", name="What it saw").click()
        seen = page.get_by_role("complementary", name="What it saw")
        await expect(seen).to_contain_text("Ann's corgi is called Pepper.")
        await expect(seen).not_to_contain_text("Sesame")

        await seen.get_by_role("link", name="Pepper").click()
        await page.get_by_role("button", name="Revert").click()
        await expect(detail.locator(".memory-content")).to_have_text("Ann's corgi is called Sesame.")


async def test_a_chinese_reader_reads_why_an_edit_is_refused(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        await ann.post("/api/memories", json={"content": "Ann's corgi is called Sesame."})
    async with signed_in(browser, api, "#/memories", language="zh") as page:
        await page.locator(".memory-row").click()
        await page.get_by_role("button", name="编辑").click()
        await page.get_by_role("dialog").get_by_role("textbox").fill("word " * 2_000)
        await page.get_by_role("button", name="保存").click()
        await expect(page.get_by_text("记忆的内容无效")).to_be_visible()
        await expect(page.locator(".memory-content")).to_have_text("Ann's corgi is called Sesame.")
        shown = "([status, body]) => import('/page/api.js').then(api => new api.Problem(status, body).message)"
        token = reader_language.set("zh")
        candidates = [{"id": "m1", "content": "tea"}, {"id": "m2", "content": "trams"}]
        for error, why in (
            (
                AmbiguousMemory("two", candidates),
                "这些词可能指多条记忆，请说得更具体 “tea” “trams”",
            ),
            (WriteUnderWay("wait"), "（5 秒后再试）"),
            (InvalidPreference("language: wrong", "偏好 language 的值有误"), "偏好 language 的值有误"),
        ):
            refused = problem_of(error)
            assert why in await page.evaluate(shown, [refused.status_code, json.loads(bytes(refused.body))])
        reader_language.reset(token)


async def test_a_question_is_settled_and_a_memory_rated_and_forgotten(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        for content in ("My birthday is 3 May 2008.", "My birthday is 4 May 2008."):
            await ann.post("/api/memories", json={"content": content})
        [conflict] = (await ann.get("/api/conflicts")).json()["items"]
        async with signed_in(browser, api, f"#/memories?memory={conflict['memory_id']}") as page:
            question = page.get_by_role("group", name="Which one is right?")
            await expect(page.get_by_role("button", name="Forget")).to_be_visible()
            await expect(page.get_by_role("button", name="Confirm")).to_have_count(0)
            await question.get_by_role("button", name="New").click()
            await expect(question).to_have_count(0)
            row = page.locator(".memory-row")
            await expect(row).to_contain_text("4 May 2008")

            held = (await ann.get("/api/memories")).json()["items"]
            async with page.expect_response("**/importance"):
                await page.get_by_role("button", name="Confirm").click()
            [confirmed] = (await ann.get("/api/memories")).json()["items"]
            assert confirmed["id"] == held[0]["id"] and confirmed["importance_at"] > held[0]["importance_at"]
            await page.get_by_role("button", name="Rate").click()
            await page.get_by_role("slider", name="Importance").fill("0.2")
            await page.get_by_role("button", name="Save").click()
            importance = page.get_by_role("img", name="Importance:")
            await expect(importance).to_have_attribute("aria-label", "Importance: 0.20")

            await page.get_by_role("button", name="Forget").click()
            await page.get_by_role("dialog").get_by_role("button", name="Forget").click()
            await expect(row).to_have_count(0)
            assert (await ann.get("/api/memories")).json()["items"] == []


async def test_the_profile_text_is_shown_above_its_lines_and_links_to_them(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        for content in ("I live in Berlin.", "I like tea."):
            await ann.post("/api/memories", json={"content": content})
        lines = [line for group in (await ann.get("/api/profile")).json()["groups"] for line in group["lines"]]
    ids = [UUID(line["memory"]) for line in lines]
    sentence = "They like <b>tea</b>."
    written = ProfileWritten(sentences=(sentence,), memories=(ids[1:],), lines=ids, derivation=DERIVED)
    await api.runtime.log.append(event(written, thread=memory_thread("ann"), user="ann", tenant=api.tenant))
    await api.runtime.wait_until_projected(names=("profile_texts",))
    async with signed_in(browser, api, "#/memories") as page:
        await page.get_by_role("button", name="Profile").click()
        text = page.get_by_role("region", name="Written by a model")
        await expect(text.locator("p").first).to_have_text(f"{sentence} [2]")
        await text.get_by_role("link", name="Line 2").click()
        await expect(page.locator(".profile li[aria-current]")).to_contain_text("tea")
        await expect(page.locator(".profile h2").first).to_have_text("Who you are")
    async with signed_in(browser, api, "#/memories?view=profile", language="zh") as page:
        await page.get_by_role("region", name="模型写的介绍").get_by_role("link", name="第 2 行").click()
        await expect(page.locator(".profile h2").first).to_have_text("个人情况")
        await page.locator(".profile li[aria-current] a").first.click()
        await expect(page.locator(".memory-detail .memory-content")).to_contain_text("tea")


async def test_entities_are_shown_with_their_relations(browser: Browser, api: Api) -> None:
    of_ann = (api.runtime, api.tenant, "ann")
    await add_entity(*of_ann, EntityInput("SCHOOL", "Lakeshore"))
    await add_entity(*of_ann, EntityInput("PERSON", "Mia", relations=(("studies_at", "Lakeshore"),)))
    async with signed_in(browser, api, "#/memories?view=entities", language="zh", theme="dark") as page:
        await page.get_by_role("button", name="人: Mia").press("Enter")
        detail = page.locator(".graph-detail")
        await expect(detail.locator("dd")).to_have_text("Lakeshore")
        await expect(page.locator(".edge text")).to_have_text("studies at")
        seen = EntitiesFound(entities=[Entity(type="TOPIC", name=f"Topic {n}") for n in range(100)])
        await api.runtime.log.append(event(seen, thread=memory_thread("ann"), user="ann", tenant=api.tenant))
        await api.runtime.wait_until_projected(names=("entities",))
        await page.reload()
        await expect(detail).to_contain_text("图中是提到最多的 49 个，共 102 个")
        await page.get_by_role("button", name="显示更多").click()
        await expect(detail.locator("li")).to_have_count(102)
        await expect(page.locator(".node")).to_have_count(50)
        await detail.locator("li button").last.click()
        await expect(detail.get_by_role("heading")).to_have_count(1)
        await expect(page.locator(".node.dim")).to_have_count(0)
        await detail.get_by_role("button", name="关闭").click()
        await expect(detail.locator("li")).to_have_count(102)


async def test_recall_says_why_a_passage_came_up_and_how_to_ask_again(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        turns = [{"role": "user", "content": "My corgi is called Sesame."}, {"role": "assistant", "content": "Lovely."}]
        await ann.post("/api/threads/dogs/turns", json={"turns": turns})
    async with signed_in(browser, api, "#/recall") as page:
        await page.get_by_role("searchbox").fill("What is the corgi called?")
        await page.keyboard.press("Enter")
        hit = page.get_by_role("region", name="Passages").locator(".hit").first
        await expect(hit).to_contain_text("My corgi is called Sesame.")
        missing = "reasons => import('/page/parts/degraded.js').then(all => reasons.map(all.missing))"
        assert await page.evaluate(missing, list(MISSING)) == list(MISSING.values())
        await hit.get_by_role("button", name="Why").click()
        await expect(hit.get_by_role("img", name="Words:")).to_be_visible()
        await expect(hit.locator(".neighbours .turn")).to_have_count(2)
        await expect(page.locator(".code")).to_contain_text("/api/recall")
        await page.get_by_role("button", name="Python").click()
        await expect(page.locator(".code")).to_contain_text("turnlog.connect(")
        await hit.get_by_role("link", name="Event").click()
        await expect(page.locator(".turn.marked")).to_contain_text("My corgi is called Sesame.")
        await expect(page.get_by_role("button", name="Later messages")).to_have_count(0)


async def test_a_question_copied_as_python_asks_what_the_page_asked(
    browser: Browser, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.client() as ann:
        turns = [{"role": "user", "content": f"The corgi slept in tram {n}."} for n in range(4)]
        await ann.post("/api/threads/dogs/turns", json={"turns": turns})
        for content in ("My corgi is called Sesame.", "I prefer corgis to trams."):
            await ann.post("/api/memories", json={"content": content})
    monkeypatch.setenv("TURNLOG_TOKEN", api.token())
    async with signed_in(browser, api, "#/recall") as page:
        for options in ("k=3&keywords=1&thread=dogs", "history=1&kind=PREFERENCE"):
            async with page.expect_response("**/api/recall") as answered:
                await page.evaluate(
                    "where => { location.hash = where }", f"#/recall?q=the+%22corgi%22+of+Ann&{options}"
                )
            shown = await (await answered.value).json()
            await page.get_by_role("button", name="Python").click()
            names: dict[str, Any] = {}
            await asyncio.to_thread(exec, await page.locator(".code code").last.inner_text(), names)
            recalled = names["recalled"]
            assert [(str(each.chunk_id), each.score) for each in recalled.turns] == [
                (each["chunk_id"], each["score"]) for each in shown["items"]
            ]
            assert [(str(each.memory.id), each.relevance) for each in recalled.memories] == [
                (each["id"], each["relevance"]) for each in shown["memories"]
            ]
            assert (recalled.degraded, recalled.memories_degraded) == (shown["degraded"], shown["memories_degraded"])
            assert shown["items"] or shown["memories"], options
        await expect(page.get_by_role("region", name="Memories")).to_contain_text("Without vectors")
