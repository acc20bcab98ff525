"""Tests the list of conversations and signing in."""

import httpx2
from helpers.api import Api
from helpers.browser import signed_in, signed_out
from playwright.async_api import Browser, expect

from turnlog.agent.access.api_keys import issue_sign_in_ticket


async def say(client: httpx2.AsyncClient, thread: str, label: str, *texts: str) -> None:
    turns = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(texts)]
    assert (await client.post("/api/threads", json={"thread": thread, "label": label})).status_code == 201
    if turns:
        assert (await client.post(f"/api/threads/{thread}/turns", json={"turns": turns})).status_code == 201


async def test_a_printed_link_signs_in_once(browser: Browser, api: Api) -> None:
    ticket = await issue_sign_in_ticket(api.runtime, api.tenant, "ann")
    for works in (True, False):
        page = await signed_out(browser, api)
        await page.goto(f"{api.url}/#ticket={ticket}")
        heading = "Threads" if works else "Sign in to turnlog"
        await expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        assert "ticket" not in page.url


async def test_conversations_are_found_renamed_and_deleted_unless_that_is_undone(browser: Browser, api: Api) -> None:
    async with api.client() as ann:
        await say(ann, "trip", "A trip to Kyoto", "When do we leave?", "In May.")
        await say(ann, "work", "Work")
        async with signed_in(browser, api) as page:
            rows = page.get_by_role("listitem").filter(has=page.locator(".thread-row"))
            await expect(rows).to_have_count(2)
            await page.get_by_role("searchbox").fill("kyoto")
            await expect(rows).to_have_count(1)
            await expect(rows.first).to_contain_text("2 messages")

            await rows.first.hover()
            await rows.first.get_by_role("button", name="Rename").click()
            await page.get_by_role("dialog").get_by_label("Name").fill("Kyoto in May")
            await page.get_by_role("button", name="Save").click()
            await expect(rows.first).to_contain_text("Kyoto in May")

            await rows.first.get_by_role("button", name="Delete").click()
            await expect(rows).to_have_count(0)
            await page.get_by_role("button", name="Undo").click()
            await expect(rows).to_have_count(1)
            assert (await ann.get("/api/threads/trip")).json()["label"] == "Kyoto in May"

            await rows.first.get_by_role("button", name="Delete").click()
            await page.get_by_role("status").get_by_role("button", name="Close").click()
            await expect(page.get_by_role("heading", level=2)).to_have_text("Nothing is named like “kyoto”")
            await page.reload()
            await expect(rows).to_have_count(1)
            assert (await ann.get("/api/threads/trip")).status_code == 404
