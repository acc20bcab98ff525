"""The screen of a team's run shows plans, calls and delegations with tokens and cost."""

from helpers.api import Api
from helpers.browser import signed_in
from helpers.stage import MemoryServer
from playwright.async_api import Browser, expect

DELEGATE = ("delegate_to_agent", {"agent_type": "profile", "task_description": "Read <b>the</b> GPA"})


async def test_a_run_is_followed_from_its_plan_over_a_delegation_to_the_answer(
    browser: Browser, api: Api, model: MemoryServer
) -> None:
    model.reply("The profile agent knows.", tool_calls=[DELEGATE])
    model.reply("I look it up.", tool_calls=[("get_profile", {})])
    model.reply("It is 3.8.")
    async with api.client() as ann:
        asked = await ann.post("/api/threads/t/answers", json={"message": "Hello, what is it?"})
        assert asked.status_code == 201, asked.text
        async with signed_in(browser, api, "#/runs") as page:
            await page.locator(".run-row").click()
            await expect(page.get_by_role("heading", level=1)).to_contain_text("A run of Profile")
            steps = page.get_by_role("region", name="Steps on a time axis").get_by_role("listitem")
            names = ["Plan", "To Profile", "Plan", "get_profile", "Answer"]
            await expect(steps.locator(".axis-name .clip:first-child")).to_have_text(names)
            await steps.nth(1).get_by_role("button").click()
            await expect(steps.nth(1).locator("pre")).to_have_text("Read <b>the</b> GPA")
            await steps.nth(2).get_by_role("button").press("Enter")
            await expect(steps.nth(2).get_by_role("table")).to_contain_text("get_profile")
            await page.get_by_role("link", name="Conversation").click()
            await expect(page.locator(".turn.assistant").last).to_contain_text("It is 3.8.")
