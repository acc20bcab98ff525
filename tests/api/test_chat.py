"""Tests the WebSocket chat: both protocols, access to sockets, and reconnecting."""

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from helpers.api import Serve, server_events
from helpers.callers import socket
from helpers.openai_bodies import Step
from helpers.openai_server import Kind
from helpers.servers import eventually
from helpers.stage import MemoryServer, task_of
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from turnlog.agent.answering.turns import NewTurn, add_turn, add_turns
from turnlog.consumers.api.principal import Principal
from turnlog.consumers.api.routes import timeline
from turnlog.consumers.api.streams import MOST_STREAMS

pytestmark = pytest.mark.slow

DIALOGUES = (
    ("记住我的名字是 Bob", "我叫什么名字？", "Bob"),
    ("remember my favorite color is blue", "what's my favorite color?", "blue"),
)


class NamingServer(MemoryServer):
    """A model server that answers with the name or color in its context."""

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind != "chat" or task_of(body) != "answer":
            return super().next_step(kind, body)
        known = re.search(r"(?:名字是|color is) ?(\w+)", str(body["messages"]))
        return Step(text=f"It is {known[1]}." if known else "I do not know.")


@pytest.fixture
def model() -> Iterator[NamingServer]:
    with NamingServer() as server:
        yield server


async def said(ws: ClientConnection, message: str, **more: Any) -> list[dict[str, Any]]:
    """Sends a message and returns the events until the end or an error."""
    await ws.send(json.dumps({"message": message, **more}, ensure_ascii=False))
    messages = [json.loads(await ws.recv())]
    while messages[-1]["type"] not in ("streaming_end", "error"):
        messages.append(json.loads(await ws.recv()))
    return messages


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(message["data"]["text"] for message in messages if message["type"] == "streaming_chunk")


async def test_both_dialogues(serve: Serve, model: NamingServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve("agent", "reactors", api_base_url=model.url, model="m") as api, api.client() as ann:
        for number, (statement, question, answer) in enumerate(DIALOGUES):
            async with socket(api, f"t{number}", f"?token={api.token()}") as ws:
                first = await said(ws, statement)
                second = await said(ws, question)
            types = [message["type"] for message in first]
            assert types[:2] == ["message_saved", "streaming_start"]
            assert types[-2:] == ["message_saved", "streaming_end"]
            assert text_of(second) == f"It is {answer}."
            assert second[-1]["data"]["usage"]["tokens_out"] > 0
            receipts = api.runtime.log.read_thread("default", f"t{number}", types=("answer_receipt",))
            assert [str(receipt.event.id) async for receipt in receipts][-1] == second[-1]["data"]["receipt_id"]
            roles = [turn["role"] for turn in (await ann.get(f"/api/threads/t{number}/turns")).json()["items"]]
            assert roles == ["user", "assistant"] * 2

        async def are_remembered() -> bool:
            return len((await ann.get("/api/memories")).json()["items"]) >= 2

        await eventually(are_remembered)
        async with socket(api, "another", f"?token={api.token()}") as ws:
            assert text_of(await said(ws, DIALOGUES[1][1])) == "It is blue."
    named = [record.name for record in caplog.records if "token=eyJ" in record.getMessage()]
    assert set(named) <= {"websockets.client"}, "the server wrote a token to its log"


async def test_a_call_that_the_tool_cannot_take_is_an_error_in_every_stream(serve: Serve) -> None:
    calls = [("recall_memory", {}), ("recall_memory", {"query": "color"})]
    with MemoryServer() as model:
        async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
            model.first["answer"] = [*(Step(tool_calls=[call]) for call in calls), Step(text="It is", finish="length")]
            async with socket(api, "t", f"?token={api.token()}") as ws:
                messages = await said(ws, "my color is red")
            returned = [message["data"] for message in messages if message["type"] == "tool_call_response"]
            assert [result["is_error"] for result in returned] == [True, False]
            assert (messages[-1]["type"], messages[-1]["data"]["finish_reason"]) == ("streaming_end", "length")
            assert "arguments must be" in returned[0]["result"] and returned[0]["latency_ms"] >= 0
            model.first["answer"] = [Step(tool_calls=[call]) for call in calls]
            streamed = await ann.post("/ai-agent/chat", json={"message": "and now?", "stream": True})
            events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
            assert [event["args"] for event in events if "args" in event] == [{}, {"query": "color"}]
            results = [event["result"] for event in events if "result" in event]
            assert "arguments must be" in results[0]["error"] and results[1]["items"] == []


async def test_a_socket_opens_for_its_owner_alone(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "mine"}]})
        ticket = (await ann.post("/api/tickets")).json()["ticket"]
        by_ticket: dict[str, Any] = {"subprotocols": ["turnlog.ticket", ticket]}
        async with socket(api, "t", **by_ticket) as ws:
            assert ws.subprotocol == "turnlog.ticket"
        refused: list[tuple[int, str, dict[str, Any]]] = [
            (401, "", by_ticket),
            (401, "", {}),
            (401, "?token=x", {}),
            (403, f"?token={api.token(scopes=['read'])}", {}),
            (403, f"?token={api.token()}", {"origin": "https://evil.example"}),
        ]
        for status, query, options in refused:
            with pytest.raises(InvalidStatus) as caught:
                async with socket(api, "t", query, **options):
                    pass
            assert caught.value.response.status_code == status, (query, options)


async def test_open_streams_and_sockets_are_limited_per_user(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "mine"}]})
        token, events = f"?token={api.token()}", "/api/threads/t/events"
        async with AsyncExitStack() as open_, socket(api, "t", token):
            for _ in range(MOST_STREAMS - 1):
                await open_.enter_async_context(ann.stream("GET", events))
            refused = await ann.get(events)
            assert (refused.status_code, refused.json()["code"]) == (429, "too-many-streams")
            with pytest.raises(InvalidStatus) as caught:
                async with socket(api, "t", token):
                    pass
            assert caught.value.response.status_code == 429
            async with socket(api, "u", f"?token={api.token('bob')}"):
                pass

        async def is_free() -> bool:
            async with ann.stream("GET", events) as again:
                return again.status_code == 200

        await eventually(is_free)


async def test_a_revoked_key_asks_nothing_more_on_an_open_socket(
    serve: Serve, model: NamingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "CHECK_S", 0)
    async with (
        serve("agent", api_base_url=model.url, model="m") as api,
        api.client("root", role="admin") as admin,
    ):
        key = (await admin.post("/api/operations/keys", json={"user": "root"})).json()
        async with (
            httpx2.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {key['key']}"}, timeout=60) as ann,
            socket(api, "t", f"?token={key['key']}") as ws,
        ):
            await said(ws, "color is red")
            async with ann.stream("GET", "/api/threads/t/events") as response:
                events = server_events(response)
                assert (await anext(events))["event"] == "turn_recorded"
                await admin.delete(f"/api/operations/keys/{key['id']}")
                turn = NewTurn("user", "more")
                await add_turn(api.runtime, "default", "t", turn, user="root")
                assert "more" not in str([event async for event in events])
            error = (await said(ws, "what's my color?"))[-1]
            assert (error["type"], error["data"]["code"]) == ("error", "unauthenticated")
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        assert len(model.asked("answer")) == 1


async def test_a_stream_of_many_events_looks_its_key_up_only_now_and_then(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    async def check(caller: Principal) -> None:
        looked.append(caller)

    monkeypatch.setattr(Principal, "check", check)
    async with serve() as api, api.client("ann") as ann:
        await add_turns(api.runtime, "default", "t", [NewTurn("user", f"{n}") for n in range(50)], user="ann")
        began = time.monotonic()
        async with ann.stream("GET", "/api/threads/t/events") as response:
            events = server_events(response)
            assert len([await anext(events) for _ in range(50)]) == 50
    assert len(looked) <= (time.monotonic() - began) / timeline.CHECK_S


async def test_a_reconnected_client_gets_missed_events_and_no_answer_twice(serve: Serve, model: NamingServer) -> None:
    async with (
        serve("agent", api_base_url=model.url, model="m") as api,
        api.client("root", role="admin") as admin,
    ):
        token = f"?token={api.token()}"
        async with socket(api, "t", token) as ws:
            await ws.send("{}")
            assert json.loads(await ws.recv())["data"]["code"] == "invalid-request"
            first = await said(ws, "color is red", request_id="one")
            again = await said(ws, "color is red", request_id="one")
        assert (text_of(first), text_of(again)) == ("It is red.", "It is red.")
        saved = [message["data"] for message in first if message["type"] == "message_saved"]
        async with socket(api, "t", f"{token}&after={saved[0]['seq']}") as ws:
            missed = json.loads(await ws.recv())
            assert (missed["type"], missed["data"]["seq"]) == ("message_saved", saved[1]["seq"])
            assert missed["data"]["content"] == "It is red."
            await admin.put("/api/operations/limits/user", json={"tokens_per_day": 0})
            error = (await said(ws, "more"))[-1]
            assert (error["type"], error["data"]["code"]) == ("error", "quota-exceeded")
            assert error["data"]["retry_after"] > 0
        assert len(model.asked("answer")) == 1
