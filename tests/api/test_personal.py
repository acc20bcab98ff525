"""A front-end shows a person's conversations and their stream of events, and lets them export and erase everything."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from helpers.api import Serve
from helpers.servers import eventually

from turnlog.events.log import Log
from turnlog.events.subjects import STREAM

pytestmark = pytest.mark.slow

SAID = {"turns": [{"role": "user", "content": "My corgi is called Sesame."}]}


async def finished(client: httpx2.AsyncClient, begun: httpx2.Response) -> dict[str, Any]:
    assert begun.status_code == 202, begun.text
    job: dict[str, Any] = {}

    async def ended() -> bool:
        job.update((await client.get(f"/api/jobs/{begun.json()['id']}")).json())
        return job["state"] != "running"

    await eventually(ended)
    return job


async def test_the_timeline_has_all_blocks_in_order(serve: Serve) -> None:
    call = {"id": "c", "name": "weather", "arguments": '{"city": "Lima"}'}
    said = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c"},
    ]
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        await ann.post("/api/threads/t/turns", json={"turns": said})
        assert [conversation["id"] for conversation in (await ann.get("/api/conversations")).json()] == ["t"]
        history = (await ann.get("/api/chat/history", params={"thread_id": "t"})).json()
        assert [message["blocks"] for message in history] == [
            [{"type": "text", "text": "Weather?"}],
            [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Lima"}},
            ],
            [{"type": "tool_result", "tool_use_id": "c", "content": "sunny"}],
        ]
        assert (await bob.get("/api/chat/history", params={"thread_id": "t"})).status_code == 404


async def test_events_of_a_thread_stream_and_continue_after_the_last_id(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        await ann.post("/api/threads/t/turns", json=SAID)
        assert (await bob.get("/api/threads/t/events")).status_code == 404
        seen: list[dict[str, Any]] = []
        for more in ("first", "second"):
            last = {"Last-Event-ID": str(seen[-1]["seq"])} if seen else {}
            async with ann.stream("GET", "/api/threads/t/events", headers=last) as response:
                await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": more}]})
                async with asyncio.timeout(180):
                    async for line in response.aiter_lines():
                        if line.startswith("data: "):
                            seen.append(json.loads(line[6:]))
                            if seen[-1]["event"]["data"].get("content") == more:
                                break
        said = [event["event"]["data"]["content"] for event in seen if event["type"] == "turn_recorded"]
        assert said == [SAID["turns"][0]["content"], "first", "second"]


async def test_a_client_that_leaves_a_stream_leaves_nothing_behind(
    serve: Serve, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    async def readers() -> set[str]:
        return {consumer.name for consumer in await log.nc.jetstream().consumers_info(STREAM)}

    async with serve() as api, api.client() as ann:
        await ann.post("/api/threads/t/turns", json=SAID)
        await ann.get("/api/threads/t")
        before = await readers()
        for _ in range(3):
            async with ann.stream("GET", "/api/threads/t/events") as response:
                lines = response.aiter_lines()  # a loop's own iterator would close the response when the loop ends
                async for line in lines:
                    if line.startswith("data: "):
                        break
                assert await readers() > before

        async def are_gone() -> bool:
            return await readers() == before

        await eventually(are_gone)
    assert not [message for message in caplog.messages if "internal error" in message]


async def test_a_person_exports_everything_clears_a_part_and_is_erased(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob, api.client(scopes=["read"]) as reader:
        for client in (ann, bob):
            await client.post(f"/api/threads/of-{client is ann}/turns", json=SAID)
        await ann.post("/api/memories", json={"content": "Ann likes tea. Her mail is ann@example.com."})
        assert (await reader.post("/api/export", json={})).status_code == 403
        job = await finished(ann, await ann.post("/api/export"))
        document = await ann.get(f"/api/export/{job['id']}")
        assert "Sesame" in document.text and "ann@example.com" not in document.text
        assert (await bob.get(f"/api/export/{job['id']}")).status_code == 404
        assert (await ann.delete("/api/user-data")).json()["code"] == "nothing-named"
        cleared = await ann.delete("/api/user-data", params={"includeMemories": True})
        assert (cleared.status_code, cleared.json()["memories"], cleared.json()["conversations"]) == (200, 1, [])
        erased = await finished(ann, await ann.post("/api/erase", json={"reason": "asked"}))
        assert erased["state"] == "done", erased
        assert erased["result"]["data"]["keys_destroyed"] >= 1 and erased["result"]["hits"] == {}
        assert (await ann.get(f"/api/export/{job['id']}")).status_code == 404
        assert (await ann.get("/api/conversations")).json() == []
        assert len((await bob.get("/api/conversations")).json()) == 1
