"""A client library that repeats its request gets the running answer, so one question has one answer."""

import asyncio
import threading
from typing import Any

import httpx2
import openai
import pytest
from helpers.api import Serve
from helpers.openai_bodies import Step
from helpers.servers import eventually
from helpers.stage import MemoryServer, player

from turnlog.agent.answering.thread_turns import _Queues

pytestmark = pytest.mark.slow

QUESTION: Any = {"role": "user", "content": "Hello."}


@pytest.mark.parametrize("thread", ["t", None])
@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_a_retry_of_the_openai_client_attaches_to_the_running_request(
    serve: Serve, model: MemoryServer, path: str, thread: str | None
) -> None:
    go_on, tries = threading.Event(), list[str]()
    model.first["answer"] = [Step(text="answer", until=go_on)]

    async def note(request: httpx2.Request) -> None:
        tries.append(request.headers["x-stainless-retry-count"])
        if len(tries) > 1:
            go_on.set()

    headers = {"X-Turnlog-Thread": thread} if thread else {}
    async with serve(api_base_url=model.url, model="m", topic_extraction=False) as api, api.client() as ann:
        hooks = {"request": [note]}
        async with openai.AsyncOpenAI(
            base_url=f"{api.url}/v1",
            api_key=api.token(),
            timeout=1,
            max_retries=9,
            default_headers=headers,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks),
        ) as client:
            if path == "chat":
                reply = await client.chat.completions.create(model="m", messages=[QUESTION])
                assert reply.choices[0].message.content == "answer"
            else:
                assert (await client.responses.create(model="m", input="Hello.")).output_text == "answer"
        assert tries[:2] == ["0", "1"] and len(model.asked("answer")) == 1
        [conversation] = (await ann.get("/api/threads")).json()["items"]
        said = (await ann.get(f"/api/threads/{conversation['thread']}/turns")).json()["items"]
        assert [turn["content"] for turn in said] == ["Hello.", "answer"]


async def test_a_retry_of_a_failed_request_stores_its_question_once(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m", topic_extraction=False) as api, api.client() as ann:

        async def ask(retry: int, **more: Any) -> httpx2.Response:
            body = {"model": "m", "messages": [QUESTION], **more}
            return await ann.post("/v1/chat/completions", json=body, headers={"x-stainless-retry-count": str(retry)})

        model.fail(400)
        assert (await ask(0)).status_code >= 400
        first = await ask(1)
        assert first.status_code == 200
        again = await ask(2)
        assert again.json()["id"] == first.json()["id"]
        assert (await ask(2, temperature=0.5)).headers["X-Turnlog-Thread"] != first.headers["X-Turnlog-Thread"]
        async with api.client("bob") as bob:
            other = await bob.post(
                "/v1/chat/completions",
                json={"model": "m", "messages": [QUESTION]},
                headers={"x-stainless-retry-count": "1"},
            )
            assert other.headers["X-Turnlog-Thread"] != first.headers["X-Turnlog-Thread"]
        said = (await ann.get(f"/api/threads/{first.headers['X-Turnlog-Thread']}/turns")).json()["items"]
        assert [turn["content"] for turn in said] == ["Hello.", "echo: Hello."]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thread", ["t", None])
async def test_a_retry_on_another_process_attaches_to_the_running_answer(
    serve: Serve, model: MemoryServer, nats_url: str, database_url: str, tmp_path: Any, thread: str | None, stream: bool
) -> None:
    """The two processes share only the servers."""
    settings: dict[str, Any] = {"api_base_url": model.url, "model": "m", "topic_extraction": False}
    play = player(nats_url, database_url, (), home=tmp_path, api_port=0)
    async with serve(**settings) as api, play("api", **settings) as other, api.client() as ann:

        async def ask(url: str, retry: int, text: str = "Hello.") -> httpx2.Response:
            headers = {"x-stainless-retry-count": str(retry), **({"X-Turnlog-Thread": thread} if thread else {})}
            body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}
            return await ann.post(f"{url}/v1/chat/completions", json=body, headers=headers)

        go_on, before = threading.Event(), len(model.requests)
        model.first["answer"] = [Step(text="answer", until=go_on)]
        first = asyncio.create_task(ask(api.url, 0))
        await asyncio.to_thread(model.wait_for_requests, before + 1)
        assert other.runtime.api_url is not None
        retry = asyncio.create_task(ask(other.runtime.api_url, 1))
        await eventually(lambda: asyncio.sleep(0, bool(other.runtime.cached(_Queues))))
        go_on.set()
        replies = await asyncio.gather(first, retry)
        assert [reply.status_code for reply in replies] == [200, 200] and all(
            "answer" in reply.text for reply in replies
        )
        for name in ("X-Turnlog-Thread", "X-Turnlog-Receipt"):
            assert replies[0].headers[name] == replies[1].headers[name]
        model.fail(400)
        assert (await ask(api.url, 0, "And now?")).status_code == (200 if stream else 400)
        assert (await ask(other.runtime.api_url, 1, "And now?")).status_code == 200
        said = [
            turn["content"]
            for listed in (await ann.get("/api/threads")).json()["items"]
            for turn in (await ann.get(f"/api/threads/{listed['thread']}/turns")).json()["items"]
        ]
        assert sorted(said) == sorted(["Hello.", "answer", "And now?", "echo: And now?"])
        assert len(model.asked("answer")) == 3
