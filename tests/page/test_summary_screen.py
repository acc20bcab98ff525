"""The summary screen shows each version of a conversation's summary, and its topics."""

from helpers.api import Api
from helpers.browser import signed_in
from helpers.sample_events import event
from playwright.async_api import Browser, expect

from turnlog.events.contracts import Derivation, SummaryWritten, TopicsTagged


async def test_versions_of_a_summary_show_what_changed_and_what_made_them(browser: Browser, api: Api) -> None:
    made = Derivation(provider="test", model="small-model", prompt_hash="abc123", from_seq=1, through_seq=2)
    async with api.client() as ann:
        turns = [{"role": "user", "content": "We go to Kyoto."}, {"role": "assistant", "content": "In May."}]
        await ann.post("/api/threads/t/turns", json={"turns": turns})
    envelope = {"thread": "t", "user": "ann", "tenant": api.tenant}
    for words in ("They go to Kyoto.", "They go to Nara <b>instead</b>."):
        written = SummaryWritten(summary=words, message_count=2, covered_seq=2, derivation=made)
        await api.runtime.log.append(event(written, **envelope))
    await api.runtime.log.append(event(TopicsTagged(topics={"trip": 2}, derivation=made), **envelope))
    async with signed_in(browser, api, "#/threads/t/summary") as page:
        version = page.get_by_role("region", name="Version")
        await expect(version.locator(".summary-text")).to_have_text("They go to Nara <b>instead</b>.")
        await expect(version).to_contain_text("small-model")
        await expect(version).to_contain_text("abc123")
        await version.get_by_role("button", name="Changes").click()
        await expect(version.locator("del")).to_have_text("Kyoto.")
        await expect(version.locator("ins")).to_have_text("Nara <b>instead</b>.")
        await expect(page.get_by_role("region", name="Topics")).to_contain_text("trip")
        await page.get_by_role("button", name="Version 1").click()
        await expect(version.locator(".summary-text")).to_contain_text("Kyoto.")
        for words in ("他们春天去京都旅行。", "他们春天去奈良旅行。"):
            written = SummaryWritten(summary=words, message_count=2, covered_seq=2, derivation=made)
            await api.runtime.log.append(event(written, **envelope))
        await page.get_by_role("button", name="Version 4").click()
        await expect(version.locator("del")).to_have_text("京都")
        await expect(version.locator("ins")).to_have_text("奈良")
        await expect(version.locator(".summary-text")).to_have_text("他们春天去京都奈良旅行。")
