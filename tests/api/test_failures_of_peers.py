"""What other memory layers got wrong, each as a test over HTTP."""

import re
from typing import Any

import httpx2
from helpers.api import Api, Serve

SECRET = "zanzibar"


async def bodies(api: Api, client: httpx2.AsyncClient, known: dict[str, str]) -> dict[str, str]:
    """What every GET route and both routes that read with a body say to this client, by route; streams are left out."""
    found: dict[str, Any] = (await client.get("/openapi.json")).json()["paths"]
    said = {}
    for path, methods in found.items():
        answers = methods.get("get", {}).get("responses", {}).get("200", {})
        if "get" in methods and "text/event-stream" not in answers.get("content", {}):
            asked = re.sub(r"\{\w+\}", lambda one: known.get(one[0], "1"), path)
            said[path] = (await client.get(asked, params={"query": "Where is the treasure?"})).text
    question = {"query": "Where is the treasure?"}
    said["POST /api/recall"] = (await client.post("/api/recall", json=question)).text
    said["POST context"] = (await client.post("/api/threads/t/context", json=question)).text
    return said


async def test_a_forgotten_memory_comes_back_by_no_route(serve: Serve) -> None:
    async with serve("reactors") as api, api.client(role="admin") as ann:
        made = await ann.post("/api/memories", json={"content": f"The treasure of Ann is in {SECRET}."})
        known = {"{thread}": "t", "{memory}": made.json()["memory_id"]}
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "Good morning."}]})
        shown = {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text}
        assert {"/api/memories", "/api/memories/{memory}", "POST /api/recall", "POST context"} <= shown
        assert (await ann.delete(f"/api/memories/{known['{memory}']}")).is_success
        assert {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text} == set()


async def test_a_deleted_conversation_comes_back_by_no_route(serve: Serve) -> None:
    async with serve() as api, api.client(role="admin") as ann:
        turns = [{"role": "user", "content": f"The treasure is in {SECRET}."}]
        await ann.post("/api/threads/t/turns", json={"turns": turns})
        known = {"{thread}": "t"}
        shown = {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text}
        assert {"/api/threads/{thread}/turns", "POST /api/recall", "POST context"} <= shown
        assert (await ann.delete("/api/threads/t")).is_success
        assert {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text} == set()


async def test_what_was_accepted_is_recalled_at_once(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for number in range(10):
            turns = [{"role": "user", "content": f"The number of door {number} is {number * 7_919}."}]
            assert (await ann.post(f"/api/threads/t{number}/turns", json={"turns": turns})).status_code == 201
            found = (await ann.post("/api/recall", json={"query": f"number of door {number}"})).json()
            assert any(str(number * 7_919) in one["text"] for one in found["items"]), number
