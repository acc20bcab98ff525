"""Naming other people's events, answers, MCP sessions or conversations by hand gives no access to them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from helpers.api import Api, Serve, openai_client, server_events
from helpers.stage import MemoryServer

pytestmark = pytest.mark.slow

MINE = {"turns": [{"role": "user", "content": "mine alone"}, {"role": "assistant", "content": "So it is yours."}]}
MCP = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18"}


@asynccontextmanager
async def first_turn(client: httpx2.AsyncClient, last: str) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("GET", "/api/threads/t/events", headers={"Last-Event-ID": last}) as response:
        assert response.status_code == 200
        async for event in server_events(response):
            if event["event"] == "turn_recorded":
                yield event
                return


async def test_an_event_id_of_another_tenant_gives_no_access(serve: Serve) -> None:
    """Sequences count over all tenants, so each tenant can guess those of other tenants."""
    async with serve() as api, api.client() as ann, api.client("ann", tenant="other") as twin, api.client("bob") as bob:
        made = (await ann.post("/api/threads/t/turns", json=MINE)).json()
        await twin.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "of the twin"}]})
        for last in ("0", str(made[0]["seq"]), str(made[-1]["seq"])):
            async with first_turn(twin, last) as event:
                text = json.dumps(event)
                assert "of the twin" in text and "mine alone" not in text
        assert (await bob.get("/api/threads/t/events", headers={"Last-Event-ID": "0"})).status_code == 404


async def test_nobody_else_can_continue_an_answer(serve: Serve) -> None:
    with MemoryServer() as model:
        async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
            async with ann.stream("POST", "/api/threads/t/answers/stream", json={"message": "Who?"}) as response:
                events = [event async for event in server_events(response)]
            seq, last = events[0]["data"]["seq"], events[-2]["id"]
            path, headers = f"/api/threads/t/answers/{seq}", {"Last-Event-ID": last}
            assert (await ann.get(path, headers=headers)).status_code == 200
            for somebody in ({"user": "bob"}, {"user": "ann", "tenant": "other"}):
                async with api.client(**somebody) as other:
                    assert (await other.get(path, headers=headers)).status_code == 404
                    await other.post("/api/threads/mine/turns", json=MINE)
                    own = await other.get(f"/api/threads/mine/answers/{seq}", headers=headers)
                    assert own.status_code == 404, own.text


async def asked(client: httpx2.AsyncClient, method: str, session: str | None, **params: Any) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await client.post("/mcp", json=body, headers=MCP | ({"Mcp-Session-Id": session} if session else {}))


async def test_an_mcp_session_id_gives_no_access(serve: Serve) -> None:
    """Requests are independent, so an invented or foreign session id opens and ends nothing."""
    client_info = {"name": "c", "version": "1"}
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client_info}
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        await ann.post("/api/memories", json={"content": "Ann likes tea."})
        begun = await asked(ann, "initialize", None, **about)
        assert begun.status_code == 200, begun.text
        for session in (begun.headers.get("Mcp-Session-Id"), "1", "ann"):
            answer = await asked(bob, "tools/call", session, name="memories", arguments={})
            assert answer.status_code == 200 and "Ann likes tea." not in answer.text
            await bob.delete("/mcp", headers=MCP | {"Mcp-Session-Id": session or "ann"})
            answer = await asked(ann, "tools/call", session, name="memories", arguments={})
            assert "Ann likes tea." in answer.text


async def texts_of(client: httpx2.AsyncClient, threads: list[str]) -> str:
    return "".join([(await client.get(f"/api/threads/{thread}/turns")).text for thread in threads])


@pytest.fixture
async def victim(serve: Serve) -> AsyncIterator[tuple[Api, httpx2.AsyncClient, int]]:
    with MemoryServer() as model:
        async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
            made = (await ann.post("/api/threads/t/turns", json=MINE)).json()
            yield api, ann, made[-1]["seq"]


async def test_nobody_forks_the_conversation_of_another(victim: tuple[Api, httpx2.AsyncClient, int]) -> None:
    """Tries the route, and OpenAI requests with the conversation's name or turns. Also tries its name as a fork's
    name."""
    api, ann, seq = victim
    before = (await ann.get("/api/threads/t/turns")).json()
    for somebody in ({"user": "bob"}, {"user": "ann", "tenant": "other"}):
        async with api.client(**somebody) as other, openai_client(api, **somebody) as v1:
            forked = await other.post("/api/threads/t/forks", json={"at_seq": seq, "thread": "f"})
            assert forked.status_code == 404, forked.text
            resent: list[Any] = [*MINE["turns"][:1], {"role": "assistant", "content": "So it is yours."}]
            resent = [*resent, {"role": "user", "content": "And now?"}]
            if somebody.get("tenant") is None:
                headers = {"X-Turnlog-Thread": "t"}
                named = await v1.chat.completions.with_raw_response.create(
                    model="m", messages=resent, extra_headers=headers
                )
                assert named.headers["X-Turnlog-Thread"] != "t"
            raw = await v1.chat.completions.with_raw_response.create(model="m", messages=resent)
            assert raw.headers["X-Turnlog-Thread"] != "t"
            edited = [*resent[:2], {"role": "user", "content": "Tell me more."}]
            await v1.chat.completions.create(model="m", messages=edited)
            own = [thread["thread"] for thread in (await other.get("/api/threads")).json()["items"]]
            assert "t" not in own and "f" not in own
            info = [(await other.get(f"/api/threads/{thread}")).json() for thread in own]
            assert {thread_info.get("parent") for thread_info in info} <= {None, *own}
            await other.post("/api/threads/source/turns", json=MINE)
            last = (await other.get("/api/threads/source/turns")).json()["items"][-1]["seq"]
            into = await other.post("/api/threads/source/forks", json={"at_seq": last, "thread": "t"})
            assert into.status_code == (409 if somebody.get("tenant") is None else 201)
    assert (await ann.get("/api/threads/t/turns")).json() == before
