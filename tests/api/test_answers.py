"""Tests answers over HTTP: complete, streamed, interrupted and continued, and requested again."""

import asyncio
import contextlib
import json
import threading
from typing import Any

import httpx2
import pytest
from helpers.api import Serve, server_events
from helpers.servers import eventually
from helpers.stage import MemoryServer

pytestmark = pytest.mark.slow

ASK = "/api/threads/t/answers"


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["data"]["chunk"] for event in events if event["event"] == "content")


async def test_a_streamed_answer_is_then_in_the_conversation(serve: Serve, model: MemoryServer) -> None:
    model.reply("Your corgi is called Sesame.")
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
        async with ann.stream("POST", f"{ASK}/stream", json={"message": "What is my dog called?"}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = [event async for event in server_events(response)]
        assert [events[0]["event"], events[-1]["event"]] == ["started", "done"]
        assert text_of(events) == "Your corgi is called Sesame." == events[-1]["data"]["response"]["answer"]
        turns = (await ann.get("/api/threads/t/turns")).json()["items"]
        assert [turn["role"] for turn in turns] == ["user", "assistant"]


async def test_a_returning_client_gets_the_rest_of_the_answer(serve: Serve, model: MemoryServer) -> None:
    """Tests the process that streamed the answer, and another process, which knows only the recorded answer."""
    goes_on = threading.Event()
    model.reply("one two three four five", until=goes_on, after=2)
    settings: dict[str, Any] = {"api_base_url": model.url, "model": "m"}
    async with serve("agent", **settings) as api, serve(**settings) as other, api.client() as ann:
        async with ann.stream("POST", f"{ASK}/stream", json={"message": "count"}) as response:
            seen = []
            async for event in server_events(response):
                seen.append(event)
                if event["event"] == "content":
                    break
            goes_on.set()
        seq, last = seen[0]["data"]["seq"], {"Last-Event-ID": seen[-1]["id"]}
        async with other.client() as elsewhere:
            for client in (ann, elsewhere):
                async with client.stream("GET", f"{ASK}/{seq}", headers=last) as response:
                    rest = [event async for event in server_events(response)]
                assert text_of(seen) + text_of(rest) == "one two three four five"
                assert rest[-1]["event"] == "done"


@pytest.mark.parametrize("team", [None, "advising"])
async def test_a_cancelled_answer_ends_with_the_text_so_far(
    serve: Serve, model: MemoryServer, team: str | None
) -> None:
    goes_on = threading.Event()
    model.reply("I look.", tool_calls=[("recall_memory", {"query": "numbers"})])
    model.reply("one two three four five", until=goes_on, after=2)
    async with serve("agent", api_base_url=model.url, model="m", team=team) as api, api.client() as ann:
        async with ann.stream("POST", f"{ASK}/stream", json={"message": "count"}) as response:
            sent = []
            async for event in server_events(response):
                sent.append(event)
                if text_of([event]).startswith("one"):
                    seq = sent[0]["data"]["seq"]
                    async with api.client("bob") as bob:
                        assert (await bob.post(f"{ASK}/{seq}/cancel")).status_code == 404
                    assert (await ann.post(f"{ASK}/{seq}/cancel")).status_code == 204
        goes_on.set()
        done = sent[-1]["data"]["response"]
        assert (done["answer"].strip(), done["finish_reason"]) == ("one", "cancelled")
        turns = (await ann.get("/api/threads/t/turns")).json()["items"]
        assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "assistant"]
        assert turns[-1]["content"].strip() == "one"
        again = await ann.post(f"{ASK}/{seq}/cancel")
        assert (again.status_code, again.json()["code"]) == (409, "not-under-way")
        usage = api.runtime.log.read_thread("default", done["thread"], types=("usage_metered",))
        assert [getattr(stored.event.data, "error", "") async for stored in usage] == [None, "cancelled"]
        if team:
            run = (await ann.get("/api/runs")).json()["items"][0]
            assert (run["status"], run["code"]) == ("failed", "answer-cancelled")


async def test_an_answer_cancelled_before_its_first_word_is_a_failure(serve: Serve, model: MemoryServer) -> None:
    model.hang()
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
        asking = asyncio.create_task(ann.post(ASK, json={"message": "count"}))
        await asyncio.to_thread(model.wait_for_requests, 1)
        seq = int((await ann.get("/api/threads/t")).headers["etag"].strip('"'))
        assert (await ann.post(f"{ASK}/{seq}/cancel")).status_code == 204
        failed = await asking
        assert (failed.status_code, failed.json()["code"]) == (409, "no-answer"), failed.text


async def test_a_question_sent_six_times_is_answered_once(serve: Serve, model: MemoryServer) -> None:
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
        sent = [ann.post(ASK, json={"message": "hello"}, headers={"Idempotency-Key": "k"}) for _ in range(6)]
        answers = await asyncio.gather(*sent)
        assert {answer.status_code for answer in answers} == {201}, answers[0].text
        assert len({answer.json()["seq"] for answer in answers}) == 1
        assert (await ann.get("/api/threads/t")).json()["messages"] == 2
        assert len(model.asked("answer")) == 1


async def test_a_client_that_leaves_does_not_lose_the_answer(
    serve: Serve, model: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
        async with ann.stream("POST", f"{ASK}/stream", json={"message": "hello"}) as response:
            assert response.status_code == 200

        async def answered() -> bool:
            return len((await ann.get("/api/threads/t/turns")).json()["items"]) == 2

        await eventually(answered)
    assert not [message for message in caplog.messages if "internal error" in message]


async def test_a_blank_question_and_an_answer_of_another_are_refused_before_the_stream(serve: Serve) -> None:
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        assert (await ann.post(f"{ASK}/stream", json={"message": " "})).status_code == 422
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "mine"}]})
        assert (await bob.get(f"{ASK}/1")).status_code == 404


async def test_a_server_that_stops_ends_its_streams(serve: Serve) -> None:
    async with httpx2.AsyncClient(timeout=60) as client:
        async with serve() as api:  # without the role agent there is no answer
            header = {"Authorization": f"Bearer {api.token()}"}
            request = client.build_request("POST", f"{api.url}{ASK}/stream", json={"message": "hello"}, headers=header)
            events = server_events(await client.send(request, stream=True))
            assert (await anext(events))["event"] == "started"
        ended = await anext(events)
        assert (ended["event"], ended["data"]["code"]) == ("error", "stopping")


@pytest.mark.parametrize(
    ("name", "language", "said"),
    [
        ("m", "en", "the server is stopping, and this answer is not recorded; ask again in a moment"),
        ("m", "zh", "服务器正在停止，这个回答没有保存；请稍后再问"),
        ("turnlog/profile", "zh", "服务器正在停止，但这个回答仍会保存；请稍后读取其余部分"),
    ],
)
async def test_a_stopping_server_says_whether_the_answer_is_recorded(
    serve: Serve, model: MemoryServer, name: str, language: str, said: str
) -> None:
    model.hang()
    body = {"model": name, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with httpx2.AsyncClient(timeout=60) as client:
        async with serve(api_base_url=model.url, model="m", team="advising") as api:
            headers = {"Authorization": f"Bearer {api.token()}", "Accept-Language": language}
            request = client.build_request("POST", f"{api.url}/v1/chat/completions", json=body, headers=headers)
            response = await client.send(request, stream=True)
        *_, ended = [line async for line in response.aiter_lines() if "error" in line]
    assert json.loads(ended.removeprefix("data: "))["error"]["message"] == said


async def test_a_request_over_a_limit_is_refused_before_the_model_is_asked(serve: Serve, model: MemoryServer) -> None:
    async with (
        serve("agent", api_base_url=model.url, model="m") as api,
        api.client() as ann,
        api.client("root", role="admin") as admin,
    ):
        changed = await admin.put("/api/operations/limits/user", json={"user_per_minute": 1})
        assert (changed.status_code, changed.json()["user"]["user_per_minute"]) == (200, 1), changed.text
        assert (await ann.post(ASK, json={"message": "hello"})).status_code == 201
        left = {limit["name"]: limit["left"] for limit in (await ann.get("/api/limits")).json()}
        assert (left["user_per_minute"], left["concurrent"]) == (0, 2)
        for path in (ASK, f"{ASK}/stream"):
            refused = await ann.post(path, json={"message": "hello"})
            assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
            assert 0 < int(refused.headers["retry-after"]) <= 60
        assert (await admin.delete("/api/operations/users/ann/rate")).status_code == 204
        await admin.put("/api/operations/limits/user", json={"tokens_per_day": 0})
        spent = await ann.post(ASK, json={"message": "hello"})
        assert (spent.status_code, spent.json()["code"]) == (402, "quota-exceeded")
        assert (await ann.get("/api/threads/t")).json()["messages"] == 2
        assert len(model.asked("answer")) == 1
        assert (await ann.get("/api/operations/limits")).status_code == 403


@pytest.mark.parametrize("path", ["/ai-agent/chat", "/api/threads/t/answers"])
async def test_an_answer_in_a_conversation_that_is_deleted_meanwhile_is_not_found(
    serve: Serve, model: MemoryServer, path: str
) -> None:
    model.reply("late", delay=2)
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "hello"}]})
        named = {"conversationId": "t"} if path == "/ai-agent/chat" else {}
        asking = asyncio.create_task(ann.post(path, json={"message": "hello", **named}))

        async def is_asked() -> bool:
            return bool(model.bodies())

        await eventually(is_asked)
        assert (await ann.delete("/api/threads/t")).status_code == 204
        answer = await asking
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found"), answer.text


async def test_a_conversation_that_is_deleted_during_a_completion_stays_deleted(
    serve: Serve, model: MemoryServer
) -> None:
    model.reply("late", delay=2)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with serve(api_base_url=model.url, model="m") as api, api.client() as ann:
        completing = asyncio.create_task(ann.post("/v1/chat/completions", json=body, headers={"X-Turnlog-Thread": "t"}))

        async def is_asked() -> bool:
            return bool(model.bodies())

        await eventually(is_asked)
        assert (await ann.delete("/api/threads/t")).status_code == 204
        assert (await completing).json()["choices"][0]["message"]["content"] == "late"
        await api.runtime.wait_until_projected()
        assert (await ann.get("/api/threads/t/turns")).status_code == 404


@pytest.mark.nightly
async def test_a_stop_ends_within_ten_seconds_and_the_next_start_answers(serve: Serve, model: MemoryServer) -> None:
    """A longer answer, its stream and a stream of events are running."""
    model.reply("too late", delay=60)
    settings: dict[str, Any] = {"api_base_url": model.url, "model": "m", "model_timeout_s": 120}
    async with contextlib.AsyncExitStack() as clients:
        async with serve("agent", "reactors", "jobs", **settings) as api:
            ann = await clients.enter_async_context(api.client())
            asked = await clients.enter_async_context(
                ann.stream("POST", "/api/threads/t/answers/stream", json={"message": "hello"})
            )
            events = server_events(asked)
            assert (await anext(events))["event"] == "started"
            await clients.enter_async_context(ann.stream("GET", "/api/threads/t/events"))
            await eventually(lambda: _has_asked(model))
        rest = [event async for event in events]
        assert (rest[-1]["event"], rest[-1]["data"]["code"]) == ("error", "stopping")
    async with serve("agent", **settings) as api, api.client() as ann:

        async def answered() -> bool:
            said = (await ann.get("/api/threads/t/turns")).json()["items"]
            return [turn["role"] for turn in said] == ["user", "assistant"]

        await eventually(answered, 60)


async def _has_asked(model: MemoryServer) -> bool:
    return bool(model.bodies())
