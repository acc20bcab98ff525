"""Tests over HTTP for known failures of other memory layers."""

import re
from typing import Any

import httpx2
import pytest
from helpers.api import Api, Serve
from helpers.openai_bodies import Step
from helpers.stage import MemoryServer, wait_until_idle

from turnlog.consumers.workers.reactors.extraction import NAME as EXTRACTION

pytestmark = pytest.mark.slow

SECRET = "zanzibar"


async def bodies(api: Api, client: httpx2.AsyncClient, known: dict[str, str]) -> dict[str, str]:
    """Returns the bodies of every GET route and of both routes that read with POST, by route; streams are left out."""
    paths: dict[str, Any] = (await client.get("/openapi.json")).json()["paths"]
    said = {}
    for path, methods in paths.items():
        answers = methods.get("get", {}).get("responses", {}).get("200", {})
        if "get" in methods and "text/event-stream" not in answers.get("content", {}):
            asked = re.sub(r"\{\w+\}", lambda match: known.get(match[0], "1"), path)
            said[path] = (await client.get(asked, params={"query": "Where is the treasure?"})).text
    question = {"query": "Where is the treasure?"}
    said["POST /api/recall"] = (await client.post("/api/recall", json=question)).text
    said["POST context"] = (await client.post("/api/threads/t/context", json=question)).text
    return said


async def test_no_route_returns_a_forgotten_memory(serve: Serve) -> None:
    async with serve("reactors") as api, api.client(role="admin") as ann:
        made = await ann.post("/api/memories", json={"content": f"The treasure of Ann is in {SECRET}."})
        known = {"{thread}": "t", "{memory}": made.json()["memory_id"]}
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "Good morning."}]})
        shown = {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text}
        assert {"/api/memories", "/api/memories/{memory}", "POST /api/recall", "POST context"} <= shown
        assert (await ann.delete(f"/api/memories/{known['{memory}']}")).is_success
        assert {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text} == set()


async def test_no_route_returns_a_deleted_conversation(serve: Serve) -> None:
    async with serve() as api, api.client(role="admin") as ann:
        turns = [{"role": "user", "content": f"The treasure is in {SECRET}."}]
        await ann.post("/api/threads/t/turns", json={"turns": turns})
        known = {"{thread}": "t"}
        shown = {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text}
        assert {"/api/threads/{thread}/turns", "POST /api/recall", "POST context"} <= shown
        assert (await ann.delete("/api/threads/t")).is_success
        assert {path for path, text in (await bodies(api, ann, known)).items() if SECRET in text} == set()


async def test_accepted_turns_are_recalled_at_once(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for number in range(10):
            turns = [{"role": "user", "content": f"The number of door {number} is {number * 7_919}."}]
            assert (await ann.post(f"/api/threads/t{number}/turns", json={"turns": turns})).status_code == 201
            recalled = (await ann.post("/api/recall", json={"query": f"number of door {number}"})).json()
            assert any(str(number * 7_919) in item["text"] for item in recalled["items"]), number


async def test_memory_does_not_feed_on_its_own_output(serve: Serve) -> None:
    """Model answers, even if a client sends them back, and the notes for models do not become memories."""
    fact, made_up = "Ann has a corgi called Sesame.", "My name is Hal, I live in Oslo, and I have a corgi called Poppy."
    with MemoryServer() as model:
        async with serve("agent", "reactors", api_base_url=model.url, model="m") as api, api.client() as ann:
            await ann.post("/api/memories", json={"content": fact})
            before = (await ann.get("/api/memories")).json()["items"]
            asked, heard = (
                {"role": "user", "content": "Which corgi does Ann have?"},
                {"role": "assistant", "content": made_up},
            )
            model.first["answer"] = [Step(text=made_up)] * 5
            for path in ("/api/threads/t/answers", "/ai-agent/chat"):
                assert (await ann.post(path, json={"message": asked["content"]})).is_success
            notes = next(
                str(message["content"]) for message in model.asked("answer")[-1]["messages"] if fact in str(message)
            )
            for messages in ([asked], [asked, heard, asked], [{"role": "user", "content": notes}]):
                assert (await ann.post("/v1/chat/completions", json={"messages": messages})).is_success
            await wait_until_idle(api.runtime.log, EXTRACTION)
            await api.runtime.wait_until_projected()
            after = (await ann.get("/api/memories")).json()["items"]
            assert [(memory["id"], memory["content"]) for memory in after] == [
                (memory["id"], memory["content"]) for memory in before
            ]
            assert (await ann.get("/api/entities")).json()["items"] == []
            own = "I really have a hamster called Milo."
            await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": own}]})
            await wait_until_idle(api.runtime.log, EXTRACTION)
            await api.runtime.wait_until_projected()
            assert "Milo" in (await ann.get("/api/memories")).text
