"""Lists are paged by a cursor, and the pages stay correct during writes."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import httpx2
import pytest
from helpers.api import Api, Serve

from turnlog.consumers.cursors import cursor_of
from turnlog.events.subjects import publish_subject

pytestmark = pytest.mark.slow

# Lists without a cursor, with the reason.
WHOLE = {
    "/api/chat/history": "the path and its response are fixed: all stored turns of a conversation",
    "/api/usage": "one row for each day, month, agent or model",
    "/api/operations/users/{user}/usage": "one row for each day, month, agent or model",
    "/api/invitations": "the first 1,000 that wait for the caller",
    "/api/threads/{thread}/participants": "one row for each person in a conversation",
    "/api/limits": "one row for each limit",
    "/api/agents": "one row for each agent",
    "/api/thread-marks": "one row for each conversation that is asked for, 100 at most",
    "/api/operations/activity": "one row for each hour",
    "/api/operations/webhooks": "one row for each webhook of the tenant",
    "/api/operations/webhooks/{name}/failures": "the first 1,000 that wait for a decision",
    "/api/operations/schedule": "one row for each job of the server",
    "/api/jobs": "what one user began in one process in the last ten minutes",
}
NOW = "2026-11-24T00:00:00.000000+00:00"
FIXED = ("/ai-agent/", "/admin/ai-agent/", "/short-memory/")  # other programs expect exactly these responses
Write = Callable[[int], Awaitable[Any]]


async def test_every_list_takes_a_cursor(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        document = (await ann.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]
        pages, whole = set(), set()
        for path, methods in document["paths"].items():
            answer = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
            schema = answer.get("application/json", {}).get("schema", {})
            named = schemas.get(schema.get("$ref", "").rpartition("/")[2], {})
            taken = {parameter["name"] for parameter in methods.get("get", {}).get("parameters", [])}
            if {"items", "next"} <= named.get("properties", {}).keys() or "cursor" in taken:
                assert {"cursor", "limit"} <= taken, path
                pages.add(path)
            elif schema.get("type") == "array" and not path.startswith(FIXED):
                whole.add(path)
        assert whole == WHOLE.keys()
        assert len(pages) >= 9


async def lists(api: Api, ann: httpx2.AsyncClient) -> dict[str, tuple[Write, str]]:
    """Returns for each list a function that writes the nth item, and the field that identifies an item."""
    jetstream = api.runtime.log.nc.jetstream()

    async def turn(n: int) -> None:
        await ann.post(f"/api/threads/t{n}/turns", json={"turns": [{"role": "user", "content": "hello"}]})

    async def memory(n: int) -> None:
        await ann.post("/api/memories", json={"content": f"Ann owns {n} cats."})

    async def entity(n: int) -> None:
        await ann.post("/api/entities", json={"type": "PERSON", "name": f"Mia {n}"})

    async def question(n: int) -> None:
        await ann.post("/api/memories", json={"content": f"My birthday is May {n + 1}."})

    async def receipt(n: int) -> None:
        made = (await ann.post("/api/threads/r/context", json={"query": f"question {n}"})).json()["receipt"]
        body = {"turns": [{"role": "assistant", "content": f"answer {n}"}], "receipt": made}
        assert (await ann.post("/api/threads/r/turns", json=body)).is_success

    async def checkpoint(n: int) -> None:
        if n == 0:
            await ann.put("/api/threads/r/session", json={"recent_turns": 0})
        await ann.post("/api/threads/r/turns", json={"turns": [{"role": "user", "content": f"turn {n}"}]})
        made = await ann.post("/api/threads/r/session/checkpoints", json={"summary": f"summary {n}"})
        assert made.is_success, made.text

    async def key(n: int) -> None:
        await ann.post("/api/operations/keys", json={"user": "ann", "label": f"key {n}"})

    async def letter(n: int) -> None:
        await jetstream.publish(publish_subject("default", f"broken-{n}", "turn_recorded"), b"{")
        await api.runtime.wait_until_projected()

    return {
        "/api/threads": (turn, "thread"),
        "/api/memories": (memory, "id"),
        "/api/entities": (entity, "name"),
        "/api/conflicts": (question, "conflict_id"),
        "/api/threads/r/receipts": (receipt, "seq"),
        "/api/threads/r/session/checkpoints": (checkpoint, "seq"),
        "/api/operations/keys": (key, "id"),
        "/api/operations/dead-letters": (letter, "seq"),
    }


async def test_pages_repeat_nothing_and_leave_nothing_out_while_others_write(serve: Serve) -> None:
    async with serve() as api, api.client(role="admin") as ann:
        for path, (write, name) in (await lists(api, ann)).items():
            for n in range(5):
                await write(n)
            first = [(item[name], item.get("projection")) for item in (await ann.get(path)).json()["items"]]
            assert len(first) >= 4, path  # four questions for five birthdays
            seen: list[Any] = []
            cursor, n = None, 5
            while True:
                page = (await ann.get(path, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
                assert len(page["items"]) <= 2, path
                seen += [(item[name], item.get("projection")) for item in page["items"]]
                if (cursor := page["next"]) is None:
                    break
                if n < 7:
                    await write(n)
                    n += 1
            assert len(seen) == len(set(seen)), path
            assert set(first) <= set(seen), path


async def test_the_last_page_names_no_next_one(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for n in range(2):
            await ann.post("/api/memories", json={"content": f"Ann owns {n} cats."})
        page = (await ann.get("/api/memories", params={"limit": 2})).json()
        assert (len(page["items"]), page["next"]) == (2, None)


async def test_conversations_link_to_their_next_page(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for name in "abc":
            await ann.post("/api/threads", json={"thread": name})
        response = await ann.get("/api/conversations", params={"limit": 2})
        assert [conversation["id"] for conversation in response.json()] == ["c", "b"]
        response = await ann.get(response.links["next"]["url"])
        assert [conversation["id"] for conversation in response.json()] == ["a"]
        assert "next" not in response.links


@pytest.mark.parametrize("path", ["/api/threads", "/api/memories", "/api/entities", "/api/conversations"])
async def test_a_cursor_of_another_list_is_refused(serve: Serve, path: str) -> None:
    async with serve() as api, api.client() as ann:
        for cursor in ("x", "WzFd", "WyJhIiwgImIiLCAiYyIsICJkIiwgImUiXQ", "WyJhIiwgImIiXQ"):
            refused = await ann.get(path, params={"cursor": cursor})
            assert (refused.status_code, refused.json()["code"]) == (422, "bad-cursor"), refused.text


@pytest.mark.parametrize(
    ("path", "position"),
    [
        ("/api/threads", (NOW, "a\0b")),
        ("/api/memories", (NOW, 2**63, str(UUID(int=1)))),
        ("/api/entities", (2**63, NOW, "PERSON", "Mia")),
        ("/api/entities", (1, NOW, "PERSON\0", "Mia")),
        ("/api/entities", (1, NOW, "PERSON", "Mia\ud800")),
    ],
)
async def test_a_cursor_that_postgres_could_not_read_is_refused(
    serve: Serve, path: str, position: tuple[str | int, ...]
) -> None:
    async with serve() as api, api.client() as ann:
        refused = await ann.get(path, params={"cursor": cursor_of(*position)})
        assert (refused.status_code, refused.json()["code"]) == (422, "bad-cursor"), refused.text


async def test_a_cursor_with_an_impossible_count_begins_with_the_first_item(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        await ann.post("/api/entities", json={"type": "PERSON", "name": "Mia"})
        page = await ann.get("/api/entities", params={"cursor": cursor_of(2**40, NOW, "PERSON", "Mia")})
        assert [entity["name"] for entity in page.json()["items"]] == ["Mia"]
