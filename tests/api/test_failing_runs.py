"""If the model fails during a team's run, all interfaces show a text, and completed steps stay."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from helpers.api import Api, Serve, openai_client, server_events
from helpers.callers import socket
from helpers.cli import commands, environment_of
from helpers.openai_bodies import Step
from helpers.openai_server import Kind
from helpers.stage import MemoryServer

from turnlog import connect as memory_at
from turnlog.agent import metrics
from turnlog.agent.answering.asking import NoAnswer
from turnlog.agent.answering.fallback import Category, fallback_of
from turnlog.agent.models.errors import ModelQuotaExceeded
from turnlog.events.contracts import UsageMetered

pytestmark = pytest.mark.slow

SET = ("update_profile", {"fields": {"gpa": 3.8}})
PLAN = Step(text="I note it.", tool_calls=[SET])
DELEGATE = Step(
    text="The profile agent knows.",
    tool_calls=[("delegate_to_agent", {"agent_type": "profile", "task_description": "Set the GPA to 3.8"})],
)
# Where the model fails: its earlier answers, the asked agent, and the steps of the run.
BEFORE: dict[str, tuple[list[Step], str, list[str]]] = {
    "plan": ([], "profile", []),
    "solve": ([PLAN], "profile", ["plan", "call", "result"]),
    "delegate": ([DELEGATE], "orchestrator", ["plan", "delegation"]),
    "solve of a delegate": ([DELEGATE, PLAN], "orchestrator", ["plan", "delegation", "plan", "call", "result"]),
}
CUT, BAD = Step(text="I note it.", tool_calls=[SET], drop_after=5), Step(tool_calls=[SET], malformed=True)
FAILURES: dict[str, tuple[Step, Category]] = {
    "429": (Step(status=429), "rate_limit"),
    "500": (Step(status=500), "network"),
    "hang": (Step(hang_after=0), "timeout"),
    "quota": (Step(status=429, code="insufficient_quota"), "quota"),
    "bad JSON": (BAD, "unknown"),
    "cut": (CUT, "network"),
}
CODES = {"rate_limit": "model-rate-limited", "timeout": "model-timed-out", "quota": "model-quota-exceeded"}
CODES |= {"network": "model-unavailable", "unknown": "model-malformed"}
ZH, EN = fallback_of(ModelQuotaExceeded("x"), "zh").message, fallback_of(ModelQuotaExceeded("x"), "en").message
NO_CREDIT = Step(status=429, code="insufficient_quota")


def settings(model: MemoryServer, **more: Any) -> dict[str, Any]:
    return {"api_base_url": model.url, "model": "m", "team": "advising", "recall_top_k": 1, **more}


class HangingServer(MemoryServer):
    """A model server that answers until the step that the question names, and hangs there."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: Counter[str] = Counter()

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind != "chat":
            return super().next_step(kind, body)
        asked = [str(said["content"]) for said in body["messages"] if str(said["content"]).startswith("My GPA")]
        stage = next(stage for stage in BEFORE if f"<{stage}>" in asked[-1])
        self._asked[stage] += 1
        before = BEFORE[stage][0]
        return before[self._asked[stage] - 1] if self._asked[stage] <= len(before) else Step(hang_after=0)


@pytest.mark.usefixtures("no_second_try")
async def test_a_failed_run_gives_the_reason_and_keeps_completed_steps(serve: Serve, model: MemoryServer) -> None:
    names = [name for name in FAILURES if name != "hang"]
    async with serve("agent", **settings(model)) as api, api.client(role="admin") as ann:
        for name in names:
            for stage in BEFORE:
                metrics.reset_breakers("llm")
                model.first["answer"] = [*BEFORE[stage][0], *[failing(name, stage)] * 4]
                await check(api, ann, name, stage)
        assert await writes(api) == 2 * len(names), "each effect once"


async def test_a_model_that_hangs_during_a_run_is_abandoned_in_time(serve: Serve) -> None:
    with HangingServer() as model:
        async with serve("agent", **settings(model, model_timeout_s=6.0)) as api, api.client(role="admin") as ann:
            await asyncio.gather(*(check(api, ann, "hang", stage) for stage in BEFORE))
            assert await writes(api) == 2, "each effect once"


def failing(name: str, stage: str) -> Step:
    if name in ("cut", "bad JSON") and "solve" in stage:  # an answer contains no calls
        return Step(drop_after=1) if name == "cut" else Step(thinking="hm hm hm", malformed=True)
    return FAILURES[name][0]


async def writes(api: Api) -> int:
    return len([write async for write in api.runtime.log.read_thread("default", "store/advising.ann.profile")])


async def check(api: Api, ann: httpx2.AsyncClient, name: str, stage: str) -> None:
    (_, category), (before, agent, steps) = FAILURES[name], BEFORE[stage]
    thread = f"{name}-{stage}".replace(" ", "-")
    body = {"message": f"My GPA is 3.8 <{stage}>", "agent": agent}
    said = await ann.post(f"/api/threads/{thread}/answers", json=body, headers={"Accept-Language": "zh"})
    problem = said.json()
    assert (problem["category"], problem["shouldRetry"]) == (category, category != "quota"), thread
    assert problem["message"] == fallback_of(NoAnswer("x", CODES[category]), "zh").message
    [run] = (await ann.get("/api/runs", params={"thread": thread})).json()["items"]
    made = (await ann.get(f"/api/runs/{run['run_id']}")).json()["steps"]
    assert run["status"] == "failed" and [step["kind"] for step in made] == [*steps, "end"], thread
    depth = int("delegate" in stage)
    assert (made[-1]["agent"], made[-1]["depth"]) == ("profile", depth) and not any(
        step["is_error"] for step in made[:-1]
    )
    metered = [
        recorded.event.data
        async for recorded in api.runtime.log.read_thread("default", thread, types=("usage_metered",))
    ]
    spent = [data.tokens_in for data in metered if isinstance(data, UsageMetered) and data.error is None]
    assert len(spent) == len(before) and all(spent), "what was spent counts"


async def test_every_interface_says_why_a_run_has_failed_in_both_languages(serve: Serve, model: MemoryServer) -> None:
    zh = {"Accept-Language": "zh-CN,zh;q=0.9"}
    async with serve("agent", **settings(model)) as api, api.client(role="admin") as ann:

        def fails() -> None:
            model.first["answer"] = [PLAN, NO_CREDIT]

        body = {"message": "My GPA is 3.8", "agent": "profile"}
        async with ann.stream("POST", "/api/threads/sse/answers/stream", json=body, headers=zh) as response:
            fails()
            events = [event async for event in server_events(response)]
        assert [event["event"] for event in events if event["event"] in ("phase_change", "tool_end", "error")] == [
            *["phase_change"] * 2,
            "tool_end",
            "phase_change",
            "error",
        ]
        assert events[-1]["data"]["message"] == ZH
        for asked, path in (({}, "/ai-agent/chat"), ({"locale": "en"}, "/ai-agent/agent")):
            fails()
            question = {"message": "My GPA is 3.8", "agentType": "profile", **asked}
            said = await ann.post(path, json=question)
            assert (said.status_code, said.json()["message"]) == (402, EN if asked else ZH)
        fails()
        streamed = {"message": "My GPA is 3.8", "agentType": "profile", "stream": True, "locale": "en"}
        async with ann.stream("POST", "/ai-agent/chat", json=streamed) as response:
            last = [event async for event in server_events(response)][-1]
        assert (last["event"], last["data"]["message"], last["data"]["action"]) == ("error", EN, "upgrade")
        fails()
        heard = await by_socket(api)
        assert [message["type"] for message in heard if message["type"] != "message_saved"] == [
            "streaming_start",
            "phase_change",
            "plan_content",
            "phase_change",
            "tool_call_request",
            "tool_call_response",
            "phase_change",
            "error",
        ]
        assert (heard[-1]["data"]["category"], heard[-1]["data"]["text"]) == ("quota", EN)
        async with memory_at(api.url, key=api.token("ann", role="admin")) as memory:
            fails()
            with pytest.raises(NoAnswer) as none:
                [piece async for piece in memory.thread("python").ask("My GPA is 3.8", agent="profile")]
        assert vars(none.value)["category"] == "quota"
        async with openai_client(api, role="admin") as client:
            asking: Any = {"model": "turnlog/profile", "messages": [{"role": "user", "content": "My GPA is 3.8"}]}
            fails()
            with pytest.raises(openai.APIStatusError) as refused:
                await client.chat.completions.create(**asking, extra_headers=zh)
            assert (refused.value.status_code, refused.value.code) == (402, "insufficient_quota")
            assert ZH in str(refused.value)
            fails()
            with pytest.raises(openai.APIError) as cut:
                async for _ in await client.chat.completions.create(**asking, stream=True):
                    pass
            assert EN in str(cut.value)
            fails()
            with pytest.raises(openai.APIStatusError) as refused:
                await client.responses.create(model="turnlog/profile", input="My GPA is 3.8", extra_headers=zh)
            assert refused.value.status_code == 402 and ZH in str(refused.value)
            fails()
            stream = await client.responses.create(model="turnlog/profile", input="My GPA is 3.8", stream=True)
            end = [event async for event in stream][-1]
            assert end.type == "response.failed" and end.response.error is not None
            assert EN in end.response.error.message


async def by_socket(api: Api) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    async with socket(api, "ws", f"?token={api.token('ann', role='admin')}") as ws:
        await ws.send(json.dumps({"message": "My GPA is 3.8", "agent": "profile"}))
        while not heard or heard[-1]["type"] != "error":
            heard.append(json.loads(await ws.recv()))
    return heard


async def test_the_command_line_says_why_a_run_has_failed(nats_url: str, database_url: str, tmp_path: Path) -> None:
    with MemoryServer() as model:
        environment = environment_of(nats_url, database_url, tmp_path) | {"API_BASE_URL": model.url, "API_KEY": "k"}
        for text, said in (("我的绩点是 3.8", ZH), ("My GPA is 3.8", EN)):
            model.first["answer"] = [PLAN, NO_CREDIT]
            told = await commands(environment | {"TURNLOG_TEAM": "advising"})(
                *("chat", "t", "--agent", "profile", "-m", text)
            )
            shown = " ".join(told.err.split())
            assert told.code == 1 and said in shown and "profile: SOLVE" in shown, told.err
