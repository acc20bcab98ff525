"""With 100,000 turns and 10,000 memories, screens render soon, lists stay small in the document, and the tab's memory
after 10,000 events is bounded. The figures are printed: pytest -s."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from helpers.api import Api
from helpers.browser import signed_in
from helpers.sample_events import MAY_8, derivation, event, memory_event, memory_of, turn
from playwright.async_api import Browser, Page, expect

from turnlog.agent.conversations.summarising.due_work import Facts, plan
from turnlog.agent.conversations.summarising.facts import load
from turnlog.agent.conversations.summarising.results import history_pruned
from turnlog.events.contracts import Event, SummaryWritten

MOST_TURNS = 240  # the most turns in the document
TURNS, THREADS, MEMORIES, EVENTS = 100_000, 1_000, 10_000, 10_000
# Addresses and selectors of their first useful element. Half of all turns are in the conversation `long`.
SCREENS = {
    "#/threads": ".thread-row",
    "#/threads/long": ".turn",
    "#/threads/long/events": ".event-row",
    "#/threads/long/context": ".message",
    "#/memories": ".memory-row",
    "#/privacy": ".tile",
    "#/events": ".event-row",
    "#/operation": ".lag-row",
}
PAINT = "selector => { globalThis.painted = null; const look = () => { if (document.querySelector(selector)) "
PAINT += "globalThis.painted = performance.now(); else requestAnimationFrame(look) }; look() }"
TRIES = 5
MOST_UNPRUNED_S = 5


def turns_of(api: Api, first: int, last: int) -> list[Event]:
    about = {"tenant": api.tenant, "user": "ann"}
    return [
        turn(
            f"Turn {n}: the museum of tram {n % 97} opens at {n % 24}.",
            ("user", "assistant")[n // 2 % 2],
            "long" if n % 2 else f"t{n // 2 % THREADS}",
            n,
            id=UUID(int=n + 1),
            **about,
        )
        for n in range(first, last)
    ]


async def fill(api: Api) -> None:
    batch = 5_000
    for first in range(0, TURNS, batch):
        await api.runtime.log.append_many(turns_of(api, first, first + batch))
    for first in range(0, MEMORIES, batch):
        memories = [
            memory_of(10**6 + n, valid_from=MAY_8 + timedelta(minutes=n), content=f"Ann rode tram {n}")
            for n in range(first, first + batch)
        ]
        await api.runtime.log.append_many([memory_event(memory, "ann", str(api.tenant)) for memory in memories])
    await api.runtime.wait_until_projected(3_600)


async def prune(api: Api, thread: str) -> None:
    """Summarises and prunes the thread like the thread maintenance, but without a model."""
    about = {"thread": thread, "tenant": api.tenant, "user": "ann"}
    async with api.runtime.pool.connection() as conn:
        facts = await load(conn, turn("", **about), 0)
    due = plan(Facts(facts.messages, 0, 0), api.runtime.settings)
    assert due.prune_through
    summary = {"message_count": len(facts.span(0, due.prune_through)), "covered_seq": due.prune_through}
    written = SummaryWritten(
        summary="Trams and museums.", derivation=derivation(facts.messages[0].seq, due.prune_through), **summary
    )
    await api.runtime.log.append_many([event(written, **about), history_pruned(facts, due.prune_through)])
    await api.runtime.wait_until_projected(600)


async def seconds_to_paint(page: Page, api: Api, where: str, selector: str) -> float:
    """Returns the minimum time over several tries, in seconds, from the page request to the first useful element."""
    tries = []
    for _ in range(TRIES):
        await page.goto(f"{api.url}/page/icon.svg")
        await page.goto(f"{api.url}/page/{where}", wait_until="commit")
        await page.evaluate(PAINT, selector)
        await expect(page.locator(selector).first).to_be_visible()
        tries.append(
            float(
                await page.evaluate(
                    "() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(painted))))"
                )
            )
            / 1_000
        )
    return min(tries)


async def memory_of_tab(page: Page) -> tuple[float, int]:
    """Returns the megabytes of the heap after garbage collection, and the number of nodes in the document."""
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    await session.send("Performance.enable")
    metrics: Sequence[dict[str, Any]] = (await session.send("Performance.getMetrics"))["metrics"]
    values = {each["name"]: each["value"] for each in metrics}
    await session.detach()
    return values["JSHeapUsedSize"] / 1e6, int(await page.evaluate("document.querySelectorAll('*').length"))


@pytest.mark.nightly
async def test_large_data_are_shown_soon_and_events_leave_nothing_in_the_tab(browser: Browser, api: Api) -> None:
    await fill(api)
    async with signed_in(browser, api, role="admin") as page:
        await expect(page.locator(".thread-row").first).to_be_visible()
        # A server with reactors would prune this conversation, so its context of all turns may take longer.
        seconds = await seconds_to_paint(page, api, "#/threads/long/context", ".message")
        print(f"the context of {TURNS // 2:,} turns, none of them pruned: {seconds:.2f} s")
        assert seconds < MOST_UNPRUNED_S
        await prune(api, "long")
        slow = dict[str, float]()
        for where, selector in SCREENS.items():
            seconds = await seconds_to_paint(page, api, where, selector)
            await expect(page.locator(selector).first).to_be_visible()
            rows = await page.locator(selector).count()
            print(f"{where:24} {seconds:.2f} s to the first {selector}, {rows} of them in the document")
            assert rows < 80
            slow |= {where: seconds} if seconds > 1 else {}

        await page.goto(f"{api.url}/page/icon.svg")
        await page.goto(f"{api.url}/page/#/threads/busy/events")
        sizes = []
        for first in (0, EVENTS // 2, EVENTS, EVENTS * 3 // 2):  # the first half fills the tab's caches
            about = {"tenant": api.tenant, "user": "ann"}
            passing = [turn(f"Passing {n}", "user", "busy", **about) for n in range(first, first + EVENTS // 2)]
            await api.runtime.log.append_many(passing)
            await expect(page.locator(".event-row").last).to_contain_text(f"Passing {first + EVENTS // 2 - 1}")
            sizes.append(await memory_of_tab(page))
        print("MB of the heap and nodes, every 5,000 events:", sizes)
        assert sizes[-1][0] < sizes[0][0] * 1.2 + 1, sizes
        assert sizes[-1][1] <= sizes[0][1] + 20, sizes
    assert slow == {}


@pytest.mark.nightly
async def test_five_thousand_turns_are_scrolled_through_in_a_tab_whose_memory_stays_flat(
    browser: Browser, api: Api
) -> None:
    turns = 5_000
    about = {"tenant": api.tenant, "user": "ann"}
    said = [turn(f"Turn {n}: {'the museum of trams ' * 20}", "user", "long", n, **about) for n in range(turns)]
    await api.runtime.log.append_many(said)
    await api.runtime.wait_until_projected(600)
    async with signed_in(browser, api, "#/threads/long") as page:
        shown = page.locator(".turn")
        await expect(shown.last).to_contain_text(f"Turn {turns - 1}:")
        sizes = []
        for button, edge, at_last in (
            ("Earlier messages", shown.first, "Turn 0:"),
            ("Later messages", shown.last, f"Turn {turns - 1}:"),
        ):
            more = page.get_by_role("button", name=button)
            pages = 0
            while await more.count():
                before = await edge.get_attribute("data-seq") or ""
                await more.press("Enter")
                await expect(edge).not_to_have_attribute("data-seq", before)
                pages += 1
                if pages % 20 == 0:
                    sizes.append(await memory_of_tab(page))
                    assert await shown.count() <= MOST_TURNS
            assert pages > 75
            await expect(edge).to_contain_text(at_last)
        print("MB of the heap and nodes, every 1,200 turns up and down:", sizes)
        assert max(size for size, _ in sizes) < sizes[0][0] * 1.2 + 1, sizes
        assert max(nodes for _, nodes in sizes) <= sizes[0][1] + 20, sizes
