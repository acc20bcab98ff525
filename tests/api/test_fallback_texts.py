"""People read a text when there is no answer: for seven kinds of failure, in two languages, on every interface."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import httpx2
import openai
import pytest
from helpers.api import Api, Serve, openai_client, server_events
from helpers.callers import socket
from helpers.openai_bodies import Step
from helpers.stage import MemoryServer

from turnlog.agent.answering.fallback import Category
from turnlog.agent.models.calls import Breaker

# The behaviour of the model, and the texts in Chinese and English.
TEXTS: dict[str, tuple[Step, str, str]] = {
    "timeout": (
        Step(hang_after=0),
        "处理时间较长，请稍后再试或简化您的问题。",
        "This takes longer than expected. Try again later, or ask a simpler question.",
    ),
    "rate_limit": (
        Step(status=429),
        "请求过于频繁，请稍等片刻后再试。",
        "There were too many requests. Wait a moment and try again.",
    ),
    "quota": (
        Step(status=429, code="insufficient_quota"),
        "今日使用额度已达上限，请明天再试或升级套餐。",
        "Today's quota is used up. Try again tomorrow, or upgrade your plan.",
    ),
    "circuit_open": (
        Step(text="not asked"),
        "服务暂时不可用，我们正在处理中，请稍后再试。",
        "The service is not available for the moment. Try again soon.",
    ),
    "network": (Step(status=500), "网络连接不稳定，请稍后重试。", "The connection is unstable. Try again later."),
    "moderation": (
        Step(status=400, code="content_filter"),
        "这个问题我无法回答，请换一种说法。",
        "I cannot answer this question. Try to put it differently.",
    ),
    "unknown": (
        Step(malformed=True),
        "出了点问题，已经记录下来，请稍后再试。",
        "Something went wrong, and it was recorded. Try again later.",
    ),
}
Face = Callable[[Api, httpx2.AsyncClient, str, str], Awaitable[str]]


async def by_http(api: Api, client: httpx2.AsyncClient, user: str, language: str) -> str:
    headers = {"Accept-Language": language}
    answered = await client.post(f"/api/threads/{user}/answers", json={"message": "hi"}, headers=headers)
    return str(answered.json()["message"])


async def by_sse(api: Api, client: httpx2.AsyncClient, user: str, language: str) -> str:
    path, headers = f"/api/threads/{user}/answers/stream", {"Accept-Language": language}
    async with client.stream("POST", path, json={"message": "hi"}, headers=headers) as response:
        return await message_of_error(response)


async def by_socket(api: Api, client: httpx2.AsyncClient, user: str, language: str) -> str:
    options = {"additional_headers": {"Accept-Language": language}}
    async with socket(api, user, f"?token={api.token(user)}", **options) as ws:
        await ws.send(json.dumps({"message": "hi"}))
        while (heard := json.loads(await ws.recv()))["type"] != "error":
            pass
    return str(heard["data"]["text"])


async def by_v1(api: Api, client: httpx2.AsyncClient, user: str, language: str, stream: bool = False) -> str:
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    async with openai_client(api, user) as theirs:
        with pytest.raises(openai.APIError) as failed:
            made = await theirs.chat.completions.create(**asked, extra_headers={"Accept-Language": language})
            assert stream, made
            async for _ in made:
                pass
    return failed.value.message


async def by_v1_stream(api: Api, client: httpx2.AsyncClient, user: str, language: str) -> str:
    return await by_v1(api, client, user, language, stream=True)


async def by_ai_agent(api: Api, client: httpx2.AsyncClient, user: str, language: str) -> str:
    answered = await client.post("/ai-agent/chat", json={"message": "hi", "locale": language})
    return str(answered.json()["message"])


async def by_ai_agent_stream(api: Api, client: httpx2.AsyncClient, user: str, language: str) -> str:
    body = {"message": "hi", "locale": language, "stream": True}
    async with client.stream("POST", "/ai-agent/chat", json=body) as response:
        return await message_of_error(response)


async def message_of_error(response: httpx2.Response) -> str:
    last = [event async for event in server_events(response)][-1]
    assert last["event"] == "error", last
    return str(last["data"]["message"])


FACES: tuple[Face, ...] = (by_http, by_sse, by_socket, by_v1, by_v1_stream, by_ai_agent, by_ai_agent_stream)


@pytest.mark.usefixtures("no_second_try")
@pytest.mark.parametrize("hangs", [False, True], ids=["answers", "hangs"])
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["one face", "all faces"])
async def test_people_read_the_text_of_every_category_in_both_languages(
    serve: Serve, model: MemoryServer, monkeypatch: pytest.MonkeyPatch, every: bool, hangs: bool
) -> None:
    """every: True tests each category on all interfaces; otherwise each category uses a different one."""
    assert TEXTS.keys() == set(get_args(Category))
    # the breaker opens only when the test opens it
    monkeypatch.setattr(Breaker, "failed", lambda breaker, asker: breaker.released())
    timeout_s = 0.5 if hangs else 60.0
    async with serve("agent", api_base_url=model.url, model="m", model_timeout_s=timeout_s, recall_top_k=1) as api:
        for at, (category, (step, zh, en)) in enumerate(TEXTS.items()):
            if (category == "timeout") is hangs:
                model.first["answer"] = [step] * 100
                chat: Any = api.runtime.models.chat
                chat.breaker.follow(0.0 if category == "circuit_open" else None)
                cells = [
                    (face, language) for face in (FACES if every else FACES[at : at + 1]) for language in ("zh", "en")
                ]
                said = await asyncio.gather(*(cell(api, category, *face_and_language) for face_and_language in cells))
                for (face, language), text in zip(cells, said, strict=True):
                    right, wrong = (zh, en) if language == "zh" else (en, zh)
                    assert right in text and wrong not in text, (category, face.__name__, language, text)


async def cell(api: Api, category: str, face: Face, language: str) -> str:
    """Asks as a separate person in a separate conversation."""
    user = f"{category}-{face.__name__}-{language}".replace("_", "-")
    async with api.client(user) as client:
        return await face(api, client, user, language)
