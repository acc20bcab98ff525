"""Who answers, chosen by WebSocket and Python; an unknown agent is refused before the question is on the log."""

import json

import pytest
from helpers.api import Serve
from helpers.callers import socket
from helpers.stage import MemoryServer

import turnlog
from turnlog.agent.answering.agents import AgentDisabled
from turnlog.agent.team.agents import switch_agent
from turnlog.events.errors import NotFound


async def test_a_socket_chooses_an_agent_for_each_question(serve: Serve, model: MemoryServer) -> None:
    model.reply("By the essay agent.")
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        async with socket(api, "t", f"?token={api.token()}") as ws:
            await ws.send(json.dumps({"message": "Hello", "agent": "pilot"}))
            refused = json.loads(await ws.recv())
            assert (refused["type"], refused["data"]["code"]) == ("error", "not-found")
            assert (await ann.get("/api/threads")).json()["items"] == []
            await ws.send(json.dumps({"message": "Hello", "agent": "Essay"}))
            while json.loads(await ws.recv())["type"] != "streaming_end":
                pass
        assert [run["agent"] for run in (await ann.get("/api/runs")).json()["items"]] == ["essay"]


async def test_python_chooses_an_agent_of_a_server(serve: Serve, model: MemoryServer) -> None:
    model.reply("By the essay agent.")
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        async with turnlog.connect(api.url, key=api.token("ann")) as memory:
            thread = memory.thread("t")
            with pytest.raises(NotFound, match="there is no agent 'pilot'"):
                await anext(thread.ask("Hello", agent="pilot"))
            assert (await ann.get("/api/threads")).json()["items"] == []
            assert "".join([part async for part in thread.ask("Hello", agent="essay")]) == "By the essay agent."
            await switch_agent(api.runtime, "default", "essay", False)
            with pytest.raises(AgentDisabled):
                await anext(thread.ask("Hello", agent="essay"))
        assert [run["agent"] for run in (await ann.get("/api/runs")).json()["items"]] == ["essay"]


async def test_every_face_shows_what_to_ask_next(serve: Serve, model: MemoryServer) -> None:
    model.said["answer"] = "Hello."
    suggested = ["帮我推荐适合我的学校"]
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        whole = await ann.post("/ai-agent/chat", json={"message": "你好", "conversationId": "a"})
        assert whole.json()["suggestions"] == suggested, whole.text
        streamed = await ann.post("/ai-agent/chat", json={"message": "你好", "conversationId": "b", "stream": True})
        done = next(line for line in streamed.text.splitlines() if line.startswith("data: ") and "response" in line)
        assert json.loads(done.removeprefix("data: "))["response"]["suggestions"] == suggested
        answered = await ann.post("/api/threads/c/answers", json={"message": "你好"})
        assert answered.json()["suggestions"] == suggested
        streamed = await ann.post("/api/threads/c/answers/stream", json={"message": "你好"})
        assert (
            json.loads(streamed.text.split("event: done\ndata: ")[1].split("\n")[0])["response"]["suggestions"]
            == suggested
        )
        async with socket(api, "d", f"?token={api.token()}") as ws:
            await ws.send(json.dumps({"message": "你好"}))
            while (message := json.loads(await ws.recv()))["type"] != "streaming_end":
                pass
        assert message["data"]["suggestions"] == suggested
        await ann.patch("/api/preferences", json={"set": {"enable_suggestions": False}})
        whole = await ann.post("/ai-agent/chat", json={"message": "你好", "conversationId": "a"})
        assert whole.json()["suggestions"] == []
