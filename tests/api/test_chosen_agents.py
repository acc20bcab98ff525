"""WebSocket and Python clients choose the agent; an unknown agent is refused before the question is stored."""

import json
from typing import Any

import pytest
from helpers.api import Serve, openai_client, server_events
from helpers.callers import socket
from helpers.stage import MemoryServer

import turnlog
from turnlog.agent.answering.single_agent import AgentDisabled
from turnlog.agent.team.agents import switch_agent
from turnlog.events.errors import NotFound

CALLED = [("get_profile", {}), ("get_personal_events", {})]
HANDED = ("delegate_to_agent", {"agent_type": "timeline", "task_description": "When is the deadline?"})


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


async def test_every_interface_shows_suggested_questions(serve: Serve, model: MemoryServer) -> None:
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
        asked: Any = {"model": "turnlog/orchestrator", "messages": [{"role": "user", "content": "你好"}]}
        async with openai_client(api) as client:
            made = await client.chat.completions.create(**asked)
            chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
            response = await client.responses.create(model="turnlog/orchestrator", input="你好")
            plain = await client.chat.completions.create(**asked | {"model": "m"})
        last = next(chunk for chunk in chunks if chunk.choices[0].finish_reason)
        for answer in (made, last, response):
            assert answer.model_dump()["turnlog"] == {"suggestions": suggested}
        assert "turnlog" not in plain.model_dump()
        async with turnlog.connect(api.url, key=api.token("ann")) as memory:
            answering = memory.thread("e").ask("你好")
            assert [part async for part in answering] == ["Hello."] and answering.suggestions == tuple(suggested)
        await ann.patch("/api/preferences", json={"set": {"enable_suggestions": False}})
        whole = await ann.post("/ai-agent/chat", json={"message": "你好", "conversationId": "a"})
        assert whole.json()["suggestions"] == []


async def test_the_ai_agent_stream_has_phases_and_plan_and_its_end_has_both_and_times(
    serve: Serve, model: MemoryServer
) -> None:
    model.reply("The timeline agent knows.", tool_calls=[HANDED])
    model.reply("First the profile.", tool_calls=CALLED)
    model.reply("In January.")
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        body = {"message": "Hello, a question", "stream": True}
        async with ann.stream("POST", "/ai-agent/chat", json=body) as response:
            events = [event async for event in server_events(response)]
        first = [event for event in events if event["event"] in ("phase_change", "plan_content", "agent_switch")]
        assert [list(event["data"].values())[-1] for event in first] == [
            *("PLAN", "The timeline agent knows.", "timeline"),
            *("PLAN", "First the profile.", "EXECUTE", "SOLVE"),
        ]
        done = events[-1]["data"]["response"]
        assert done["plan"] == {
            "content": "First the profile.",
            "steps": [{"tool": name, "args": arguments} for name, arguments in CALLED],
        }
        assert done["timing"].keys() == {"plan", "execute", "solve"} and min(done["timing"].values()) > 0
        assert (done["agentType"], done["delegatedTo"]) == ("timeline", "timeline")
        model.said["answer"] = "Hello."
        greeted = (await ann.post("/ai-agent/chat", json={"message": "Hello", "agentType": "essay"})).json()
        assert greeted["plan"] == {"content": "Hello.", "steps": []} and greeted["timing"]["execute"] == 0


async def test_an_answer_requested_again_from_another_process_has_its_whole_run(
    serve: Serve, model: MemoryServer
) -> None:
    model.reply("The timeline agent knows.", tool_calls=[HANDED])
    model.reply("First the profile.", tool_calls=CALLED)
    model.reply("In January.")
    asking: dict[str, Any] = {"api_base_url": model.url, "model": "m", "team": "advising"}
    body, key = {"message": "Hello, a question", "conversationId": "t"}, {"Idempotency-Key": "once"}
    answers = []
    for _ in range(2):
        async with serve("agent", **asking) as api, api.client() as ann:
            answers.append((await ann.post("/ai-agent/chat", json=body, headers=key)).json())
            async with api.runtime.pool.connection() as conn:
                await conn.execute("DELETE FROM repeatable_writes")
    assert len(model.asked("answer")) == 3 and answers[0]["timing"]["solve"] > 0
    for answer in answers:  # tools that run concurrently may answer in any order
        answer["plan"]["steps"].sort(key=lambda step: step["tool"])
    assert answers[1] == answers[0] | {"data": answers[0]["data"] | {"finishReason": None}}
