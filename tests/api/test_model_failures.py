"""If a model misbehaves, each interface returns the right error and text, and the model is asked a limited number of
times."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from helpers.api import Api, Serve, openai_client, server_events
from helpers.callers import socket
from helpers.cli import commands, environment_of
from helpers.openai_bodies import Step
from helpers.stage import MemoryServer

from turnlog import connect as memory_at
from turnlog.agent import metrics
from turnlog.agent.answering.asking import NoAnswer
from turnlog.agent.answering.fallback import Category, fallback_of
from turnlog.agent.models.errors import (
    ModelError,
    ModelModerated,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelTimedOut,
    ModelUnavailable,
    NotAnAPI,
)

pytestmark = pytest.mark.slow

Misbehaves = tuple[str, Step, Category, type[ModelError], int, int]
# The misbehaviour, the category, the status of /api and of /v1.
TABLE: list[Misbehaves] = [
    ("rate", Step(status=429), "rate_limit", ModelRateLimited, 429, 429),
    ("rate-long", Step(status=429, headers={"Retry-After": "600"}), "rate_limit", ModelRateLimited, 429, 429),
    ("no-credit", Step(status=429, code="insufficient_quota"), "quota", ModelQuotaExceeded, 402, 402),
    ("broken", Step(status=500), "network", ModelUnavailable, 502, 502),
    ("no-headers", Step(delay=60), "timeout", ModelTimedOut, 504, 504),
    ("headers-alone", Step(hang_after=0), "timeout", ModelTimedOut, 504, 504),
    ("hangs-up", Step(drop_after=0), "network", ModelUnavailable, 502, 502),
    ("web-page", Step(page="<html>Sign in</html>"), "unknown", NotAnAPI, 502, 502),
    ("moderation", Step(status=400, code="content_filter"), "moderation", ModelModerated, 422, 400),
]


def said(error: type[ModelError], locale: Any) -> str:
    return fallback_of(error("x"), locale).message


@pytest.mark.usefixtures("no_second_try")
@pytest.mark.parametrize(
    ("timeout_s", "hangs"),
    [pytest.param(0.9, True, id="silent", marks=pytest.mark.nightly), pytest.param(60.0, False, id="answers")],
)
async def test_every_interface_reports_a_model_failure_at_once(serve: Serve, timeout_s: float, hangs: bool) -> None:
    settings: dict[str, Any] = {"model": "m", "model_timeout_s": timeout_s, "recall_top_k": 1}
    with MemoryServer() as model:
        async with serve("agent", api_base_url=model.url, **settings) as api:
            for name, step, category, error, status, of_v1 in TABLE:
                if (category == "timeout") == hangs:
                    model.first["answer"] = [step] * 50
                    await check(api, model, name, category, error, status, of_v1, step)


async def test_the_command_line_says_what_is_wrong(nats_url: str, database_url: str, tmp_path: Path) -> None:
    with MemoryServer() as model:
        environment = environment_of(nats_url, database_url, tmp_path) | {"API_BASE_URL": model.url, "API_KEY": "k"}
        for text, locale in (("你好", "zh"), ("hello", "en")):
            model.first["answer"] = [Step(status=429, code="insufficient_quota")]
            told = await commands(environment)("chat", "t", "-m", text)
            assert told.code == 1 and said(ModelQuotaExceeded, locale) in " ".join(told.err.split()), told.err
        assert len(model.asked("answer")) == 2


async def check(
    api: Api,
    model: MemoryServer,
    name: str,
    category: Category,
    error: type[ModelError],
    status: int,
    of_v1: int,
    step: Step,
) -> None:
    """Asks once on each interface; the time allows a single request to the model."""
    metrics.reset_breakers("llm")
    user, zh = f"user-{name}", {"Accept-Language": "zh-CN,zh;q=0.9"}
    before = len(model.asked("answer"))
    async with api.client(user) as client:
        whole = await client.post(f"/api/threads/{name}/answers", json={"message": "hi"}, headers=zh)
        problem = whole.json()
        assert (whole.status_code, problem["category"]) == (status, category), name
        assert problem["message"] == said(error, "zh")
        if "Retry-After" in step.headers:
            assert whole.headers["retry-after"] == step.headers["Retry-After"]
        stream = f"/api/threads/{name}/answers/stream"
        async with client.stream("POST", stream, json={"message": "hi"}) as response:
            last = [event async for event in server_events(response)][-1]
        assert (last["event"], last["data"]["category"]) == ("error", category)
        assert last["data"]["message"] == said(error, "en")
    async with socket(api, f"{name}-ws", f"?token={api.token(user)}") as ws:
        await ws.send(json.dumps({"message": "hi"}))
        while (heard := json.loads(await ws.recv()))["type"] != "error":
            pass
        assert (heard["data"]["category"], heard["data"]["text"]) == (category, said(error, "en"))
    async with memory_at(api.url, key=api.token(user)) as memory:
        with pytest.raises(NoAnswer) as none:
            [piece async for piece in memory.thread(name).ask("hi")]
        assert vars(none.value)["category"] == category, name
        metrics.reset_breakers("llm")
    async with openai_client(api, user) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model="m", messages=messages, extra_headers=zh)
        assert refused.value.status_code == of_v1, name
        assert said(error, "zh") in str(refused.value)
        metrics.reset_breakers("llm")
        with pytest.raises(openai.APIError) as cut:
            async for _ in await client.chat.completions.create(model="m", messages=messages, stream=True):
                pass
        assert said(error, "en") in str(cut.value)
        events = [event async for event in await client.responses.create(model="m", input="hi", stream=True)]
        assert events[-1].type == "response.failed" and events[-1].response.error is not None
        assert said(error, "en") in events[-1].response.error.message
    asked = len(model.asked("answer")) - before
    # On a busy machine the time limit of a question may end before its request is sent.
    assert 0 < asked <= 7 if category == "timeout" else asked == 7, name
    failures = [recorded async for recorded in api.runtime.log.read_thread("default", name, types=("usage_metered",))]
    assert len(failures) == 3


async def test_an_answer_that_never_ends_is_ended_and_marked_over_http(serve: Serve) -> None:
    """Tests all three interfaces at once, with enough time for a busy machine to send the first words."""
    settings: dict[str, Any] = {"model": "m", "answer_timeout_s": 5.0}
    with MemoryServer() as model:
        async with serve("agent", api_base_url=model.url, **settings) as api, api.client(role="vip") as ann:
            model.first["answer"] = [Step(text="on and on " * 5_000, between=0.1)] * 3
            made, other, cut = await asyncio.gather(
                ann.post("/api/threads/t/answers", json={"message": "hi"}),
                ann.post("/ai-agent/chat", json={"message": "hi", "locale": "en"}),
                ann.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}),
            )
            assert made.json()["finish_reason"] == "timeout" and made.json()["answer"].startswith("on and on")
            assert other.json()["data"]["finishReason"] == "timeout"
            assert cut.json()["choices"][0]["finish_reason"] == "length"
            metered = api.runtime.log.read_thread("default", "t", types=("usage_metered",))
            assert [recorded.event.data.error async for recorded in metered] == ["timeout"]
