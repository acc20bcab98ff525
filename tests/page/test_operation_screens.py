"""Tests the screens of live events, operation, privacy and access, as operators and users use them."""

import json

import pytest
from helpers.api import Api
from helpers.browser import signed_in
from helpers.servers import eventually
from playwright.async_api import Browser, expect

from turnlog.agent.models.calls import ResilientClient
from turnlog.consumers.workers.analytics import analytics
from turnlog.events.subjects import publish_subject

# Computes the hours on a plot's axis from its ends.
HOURS = """caption => {
  const [first, last] = [...caption.querySelectorAll("time")].map(end => Date.parse(end.dateTime));
  return (last - first) / 3_600_000 + 1;
}"""

PEOPLE = b"""
INSERT INTO usage SELECT %(tenant)s, current_date, 'person-' || n, 'agent', 'answer', 'openai', 'm', 1, 9, 9, 0, 0, 5, 5
FROM generate_series(1, 120) n"""


async def test_events_arrive_are_filtered_and_show_their_effects(browser: Browser, api: Api) -> None:
    async with api.client() as ann, signed_in(browser, api, "#/threads/t/events") as page:
        await expect(page.get_by_text("No events yet")).to_be_visible()
        await ann.post("/api/threads/t/answers", json={"message": "Hello <b>there</b>"})
        request = page.locator(".event-row").filter(has_text="answer_requested")
        await request.click()
        detail = page.get_by_role("complementary", name="Event")
        tree = detail.locator(".event-tree")
        await expect(tree.locator("[aria-current]")).to_contain_text("answer_requested")
        await expect(tree.locator("ul .event-node").first).to_be_visible()
        await expect(detail.locator(".code, pre").last).to_contain_text('"type": "turnlog.answer_requested')
        await tree.get_by_role("button", name="turn_recorded").first.click()
        rows = detail.get_by_role("region", name="Rows that came from this")
        await rows.get_by_text("messages", exact=True).click()
        await expect(rows.locator("details[open] pre")).to_contain_text('"content": "Hello <b>there</b>"')
        await detail.get_by_role("button", name="Close").click()

        await page.get_by_role("button", name="Pause").click()
        turns = page.locator(".event-row").filter(has_text="turn_recorded")
        before = await turns.count()
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "One more"}]})
        await expect(page.get_by_text("1 more since")).to_be_visible()
        assert await turns.count() == before
        await page.get_by_role("button", name="Go on").click()
        await expect(turns).to_have_count(before + 1)
        await page.get_by_label("Type of events").select_option("turn_recorded")
        await expect(page.locator(".event-row")).to_have_count(before + 1)


async def test_operators_follow_the_events_of_all_conversations_also_after_a_lost_connection(
    browser: Browser, api: Api
) -> None:
    stream, opened = "**/api/operations/events*", signed_in(browser, api, role="admin")
    async with api.client() as ann, api.client(tenant="others") as other, opened as page:
        await page.route(stream, lambda route: route.abort())
        await page.evaluate("location.hash = '#/events'")
        await expect(page.get_by_text("Connection lost")).to_be_visible()
        await expect(page.get_by_text("Live", exact=True)).to_have_count(0)
        await page.unroute(stream)
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
        for thread, client in (("t", ann), ("elsewhere", other), ("u", ann)):
            turns = {"turns": [{"role": "user", "content": f"Said in {thread}"}]}
            assert (await client.post(f"/api/threads/{thread}/turns", json=turns)).status_code == 201
        rows = page.locator(".event-row").filter(has_text="Said in")
        await expect(rows).to_have_count(2)
        await expect(rows.last).to_contain_text("Said in u")


async def test_operators_see_the_effects_of_another_persons_event_but_not_its_words(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        said = {"message": "My corgi is called Sesame."}
        assert (await ann.post("/api/threads/t/answers", json=said)).status_code == 201
        request = (await ann.get("/api/threads/t/turns")).json()["items"][0]["seq"] + 1
        assert (await ann.get(f"/api/operations/events/{request}")).status_code == 403
    async with signed_in(browser, api, "#/events", user="root", role="admin") as page:
        await page.locator(".event-row").filter(has_text="answer_requested").click()
        detail = page.get_by_role("complementary", name="Event")
        await expect(detail.locator(".event-tree ul .event-node").first).to_be_visible()
        await detail.locator(".event-tree").get_by_role("button", name="turn_recorded").first.click()
        rows = detail.get_by_role("region", name="Rows that came from this")
        await expect(rows).to_contain_text("What other people said stays sealed")
        await rows.get_by_text("messages", exact=True).click()
        await expect(rows.locator("details[open] pre")).to_contain_text(f'"seq": {request - 1}')
        await expect(rows.locator("details[open] pre")).to_contain_text('"user_id": "ann"')
        await expect(detail).not_to_contain_text("Sesame")
        await expect(detail.get_by_role("link")).to_have_count(0)  # because the conversation stays inaccessible


async def test_operators_see_lag_rebuild_and_plots_and_turn_agents_off(browser: Browser, api: Api) -> None:
    async with api.client("root", role="admin") as root:
        await root.post("/api/threads/t/answers", json={"message": "Hello"})
        async with signed_in(browser, api, "#/operation", user="root", role="admin") as page:
            await expect(page.get_by_role("list", name="Read models").locator(".lag-row").first).to_be_visible()
            await page.get_by_label("Read model", exact=True).select_option("messages")
            await page.get_by_role("button", name="Rebuild").click()
            await expect(page.get_by_role("img", name="Done: 100%")).to_be_visible()
            await page.get_by_role("button", name="Usage and cost").click()
            await expect(page.locator(".plot canvas")).to_have_count(2)
            async with api.runtime.pool.connection() as conn:
                await conn.execute(PEOPLE, {"tenant": api.tenant})
            await page.get_by_role("button", name="User", exact=True).click()
            people = page.get_by_role("region", name="Usage by").locator("tbody tr")
            await expect(people).to_have_count(100)
            await expect(page.get_by_text("The first 100", exact=False)).to_be_visible()
            await page.get_by_role("button", name="Show more").click()
            await expect(people).to_have_count(121)
            await expect(page.get_by_role("button", name="Show more")).to_have_count(0)

            for label in ("First", "Second"):
                await root.post("/api/operations/keys", json={"user": "root", "role": "user", "label": label})
            paged = "**/api/operations/keys?*"
            await page.route(paged, lambda route: route.continue_(url=route.request.url.replace("=100", "=1")))
            await page.evaluate("location.hash = '#/access'")
            keys, more = page.get_by_role("region", name="API keys").locator("tbody tr"), "Show more"
            await expect(keys).to_have_count(1)
            await page.get_by_role("button", name=more).click()
            await expect(keys).to_have_count(2)
            await expect(page.get_by_role("button", name=more)).to_have_count(0)
            await page.unroute(paged)
            await page.get_by_role("switch").first.click()
            await expect(page.get_by_role("switch").first).to_have_attribute("aria-checked", "false")
            assert not (await root.get("/admin/ai-agent/agents")).json()[0]["enabled"]
            await page.get_by_role("button", name="New key").click()
            await page.get_by_role("dialog").get_by_label("Label").fill("A program")
            await page.get_by_role("button", name="Create the key").click()
            await expect(page.get_by_role("dialog").locator("pre")).not_to_be_empty()
            await page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
            await page.get_by_role("row", name="A program").get_by_role("button", name="Revoke").click()
            await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
            await expect(page.get_by_role("row", name="A program")).to_contain_text("Revoked")


@pytest.mark.nightly
async def test_activity_is_plotted_with_its_sums_and_named_in_both_languages(browser: Browser, api: Api) -> None:
    async with api.client("root", role="admin") as root:
        turns = [{"role": role, "content": "Hello"} for role in ("user", "assistant", "assistant")]
        assert (await root.post("/api/threads/t/turns", json={"turns": turns})).status_code == 201

        async def are_counted() -> bool:
            rows = (await root.get("/api/operations/activity", params={"hours": 24})).json()
            return sum(row["events"] for row in rows if row["role"]) == len(turns)

        async with analytics(api.runtime):
            await eventually(are_counted)
        async with signed_in(browser, api, "#/operation", user="root", role="admin") as page:
            await page.get_by_role("button", name="Activity").click()
            plots = page.get_by_role("figure")
            await expect(plots.locator("canvas")).to_have_count(4)
            spoken = plots.filter(has_text="Turns per hour")
            await expect(spoken.locator(".legend li")).to_have_text(["User1", "Assistant2"])
            await expect(spoken.get_by_role("row").filter(has_text="User: 1Assistant: 2")).to_have_count(1)
            for span, hours in (("Day", 24), ("Week", 168)):
                await page.get_by_role("button", name=span).click()
                await expect(page.get_by_role("button", name=span)).to_have_attribute("aria-pressed", "true")
                assert await spoken.locator("caption").evaluate(HOURS) == hours

            await page.evaluate("location.hash = '#/access'")
            await expect(page.get_by_role("button", name="Change Coordinator")).to_be_visible()
            await page.get_by_role("button", name="中文").click()
            await expect(page.get_by_role("button", name="修改 协调者")).to_be_visible()


async def test_operators_change_an_agent_by_keyboard_and_undo_the_change(browser: Browser, api: Api) -> None:
    opened = signed_in(browser, api, "#/access", role="admin", language="zh")
    async with api.client(role="admin") as root, opened as page:
        before = (await root.get("/admin/ai-agent/agents/essay")).json()
        change, dialog = page.get_by_role("button", name="修改 文书专家"), page.get_by_role("dialog")
        await change.press("Enter")
        await expect(dialog.get_by_label("提示词")).to_have_value(before["systemPrompt"])
        await dialog.get_by_label("提示词").fill("Answer in <b>one</b> sentence.")
        await dialog.get_by_label("温度").fill("0")
        await dialog.get_by_label("最多词元").fill("900")
        await dialog.get_by_label("polish_essay").press("Space")
        await dialog.get_by_label("选校专家", exact=True).press("Space")
        await dialog.get_by_label("温度").press("Enter")
        await expect(dialog).to_have_count(0)
        after = (await root.get("/admin/ai-agent/agents/essay")).json()
        assert (after["systemPrompt"], after["temperature"]) == ("Answer in <b>one</b> sentence.", 0)
        assert (after["maxTokens"], after["delegates"]) == (900, ["orchestrator", "school"])
        assert after["tools"] == [tool for tool in before["tools"] if tool != "polish_essay"]
        await change.press("Enter")
        await expect(dialog.get_by_label("polish_essay")).not_to_be_checked()
        await page.keyboard.press("Escape")
        await change.press("Enter")
        await dialog.get_by_role("button", name="恢复为文件中的设置").press("Enter")
        await expect(dialog).to_have_count(0)
        again = (await root.get("/admin/ai-agent/agents/essay")).json()
        assert again | {"updatedAt": None} == before
        of_no_team = (
            "import('/page/i18n.js').then(words => words.agentName({type: 'orchestrator', name: 'orchestrator'}))"
        )
        assert await page.evaluate(of_no_team) == "助手"


async def test_a_person_takes_a_copy_and_is_erased_with_a_receipt(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        await ann.post("/api/memories", json={"content": "Ann's corgi is called Sesame."})
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "My corgi is Sesame."}]})
    async with signed_in(browser, api, "#/privacy") as page:
        await expect(page.locator(".tile").filter(has_text="Memories")).to_contain_text("1")
        await page.get_by_role("button", name="Create the file").click()
        async with page.expect_download() as begun:
            await page.get_by_role("link", name="Save the file").click()
        saved = await (await begun.value).path()
        assert "Sesame" in json.dumps(json.loads(saved.read_text()))
        await page.get_by_role("button", name="Erase everything").click()
        await page.get_by_role("dialog").get_by_role("textbox").fill("ann")
        await page.get_by_role("dialog").get_by_role("button", name="Erase everything").click()
        receipt = page.get_by_role("region", name="Receipt")
        await expect(receipt).to_contain_text("Nothing left")


async def test_operators_give_another_person_a_copy_and_erase_them_with_a_receipt(browser: Browser, api: Api) -> None:
    async with api.client() as ann, api.client("bob") as bob:
        for client, content in ((ann, "Ann's corgi is called Sesame."), (bob, "Bob's cat is called Pepper.")):
            assert (await client.post("/api/memories", json={"content": content})).status_code == 201
        for address in ("export", "erase"):
            assert (await bob.post(f"/api/{address}?user=ann", json={})).status_code == 403, address
        assert (await bob.delete("/api/user-data?user=ann&includeMemories=true")).status_code == 403
        async with signed_in(browser, api, "#/privacy", user="root", role="admin") as page:
            await page.get_by_role("combobox", name="Another person").fill("ann")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Stored of ann")).to_be_visible()
            await expect(page.locator(".tile").filter(has_text="Memories")).to_contain_text("1")
            await page.get_by_role("button", name="Create the file").click()
            async with page.expect_download() as begun:
                await page.get_by_role("link", name="Save the file").click()
            copy = (await (await begun.value).path()).read_text()
            assert "Sesame" in copy and "Pepper" not in copy

            erase, dialog = page.get_by_role("button", name="Erase everything"), page.get_by_role("dialog")
            await erase.click()
            await dialog.get_by_role("textbox").fill("root")
            await dialog.get_by_role("button", name="Erase everything").click()
            await expect(page.get_by_text("That is another user name; nothing was erased.")).to_be_visible()
            await erase.click()
            await dialog.get_by_role("textbox").fill("ann")
            await dialog.get_by_role("button", name="Erase everything").click()
            await expect(page.get_by_role("region", name="Receipt")).to_contain_text("Nothing left")
        assert (await ann.get("/api/memories")).json()["items"] == []
        assert len((await bob.get("/api/memories")).json()["items"]) == 1


async def test_operators_read_the_memories_of_another_person_and_change_nothing(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        assert (await ann.post("/api/memories", json={"content": "Ann's corgi is called Sesame."})).status_code == 201
        for address in ("memories", "memory-stats", "conflicts", "entities", "user-data"):
            assert (await ann.get(f"/api/{address}", params={"user": "root"})).status_code == 403, address
    async with signed_in(browser, api, "#/memories", user="root", role="admin") as page:
        await page.get_by_role("combobox", name="Another person").fill("ann")
        await page.keyboard.press("Enter")
        await page.locator(".memory-row").click()
        detail = page.get_by_role("complementary", name="Memory")
        await expect(detail.locator(".memory-content")).to_have_text("Ann's corgi is called Sesame.")
        await expect(detail.get_by_role("button")).to_have_count(1)  # the only button closes the panel
        await expect(page.get_by_role("button", name="Remember")).to_have_count(0)


async def test_a_dead_letter_is_retried_and_dropped(browser: Browser, api: Api) -> None:
    async with api.client("root", role="admin") as root:
        await root.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "Before"}]})
        subject = publish_subject(str(api.tenant), "t", "turn_recorded")
        await api.runtime.log.nc.jetstream().publish(subject, b"{")  # an undecodable event
        await api.runtime.wait_until_projected()
        async with signed_in(browser, api, "#/operation", user="root", role="admin") as page:
            letter = page.get_by_role("region", name="Dead letters").get_by_role("row").filter(has_text="messages")
            await letter.get_by_role("button", name="Retry").click()
            await expect(page.get_by_text("still parked")).to_be_visible()
            await letter.get_by_role("button", name="Drop").click()
            await page.get_by_role("dialog").get_by_role("button", name="Drop").click()
            await expect(letter).to_contain_text("Dropped")
        letters = (await root.get("/api/operations/dead-letters", params={"projection": "messages"})).json()["items"]
        assert [each["status"] for each in letters] == ["dropped"]


async def test_dead_letters_are_paged_and_say_why_in_chinese(browser: Browser, api: Api) -> None:
    subject = publish_subject(str(api.tenant), "t", "turn_recorded")
    for number in range(26):  # each event becomes a dead letter of four read models
        await api.runtime.log.nc.jetstream().publish(subject, b"{" * (number + 1))
    await api.runtime.wait_until_projected()
    async with signed_in(browser, api, "#/operation", user="root", role="admin", language="zh") as page:
        shown = page.get_by_role("region", name="死信").locator("tbody tr")
        await expect(shown).to_have_count(100)
        await expect(shown.first).to_contain_text("无法应用：")
        await expect(shown.last).to_contain_text("同一会话中更早的事件无法应用")
        await expect(page.get_by_text("按日志顺序的前 100 条")).to_be_visible()
        await page.get_by_role("button", name="显示更多").click()
        await expect(shown.nth(103)).to_be_visible()
        await expect(page.get_by_role("button", name="显示更多")).to_have_count(0)


async def test_limits_of_a_plan_are_changed(browser: Browser, api: Api) -> None:
    opened = signed_in(browser, api, "#/access", user="root", role="admin")
    async with api.client("root", role="admin") as root, opened as page:
        await page.get_by_role("spinbutton", name="Users: Requests an hour").fill("321")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Saved; it holds for the next request")).to_be_visible()
        assert (await root.get("/api/operations/limits")).json()["user"]["user_per_hour"] == 321
        await expect(page.get_by_text("it cannot be revoked")).to_be_visible()


async def test_an_open_breaker_is_closed(browser: Browser, api_of_all: Api) -> None:
    breaker = ResilientClient("http://127.0.0.1:9", secret=None, service="probe").breaker
    for _ in range(5):
        breaker.admit()
        breaker.failed()
    async with signed_in(browser, api_of_all, "#/access", user="root", role="admin") as page:
        circuit = page.get_by_role("region", name="Circuit breakers").get_by_role("row", name="probe")
        await circuit.get_by_role("button", name="Close").click()
        await expect(circuit).to_have_count(0)
        assert breaker.state == "closed"
