"""A user who floods the API gets only as many answers as the limits allow, and others are not affected."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from helpers.api import Serve, server_events
from helpers.callers import mcp_of, socket
from helpers.openai_server import OpenAIServer
from helpers.servers import eventually
from prometheus_client import REGISTRY

from turnlog.agent.access.throttle.admission import throttle_of
from turnlog.agent.access.throttle.fair_share import AT_ONCE, WAITING, Shares, in_share
from turnlog.agent.answering.turns import NewTurn, add_turns
from turnlog.consumers.api.request_limits import MOST_REQUESTS

pytestmark = pytest.mark.slow

TURNS, READERS, QUESTIONS, AT_ONCE_ANSWERED, A_MINUTE = 600, 3, 45, 2, 30


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def question(thread: str) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "Is it?"}]}
    return {"url": "/v1/chat/completions", "json": body, "headers": {"X-Turnlog-Thread": thread}}


async def test_a_flood_is_limited_and_another_user_is_not_affected(serve: Serve, model: OpenAIServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, api.client() as ann, api.client("bob") as bob:
        turns = [NewTurn("user", f"message {n}") for n in range(TURNS)]
        for at in range(0, TURNS, 500):
            await add_turns(api.runtime, "default", "long", turns[at : at + 500], user="ann")
        ended = asyncio.Event()

        async def read() -> int:
            length = 0
            while not ended.is_set():
                answer = await ann.get("/api/chat/history", params={"thread_id": "long"})
                length = len(answer.json()) if answer.status_code == 200 else length
            return length

        readers = [asyncio.create_task(read()) for _ in range(READERS)]
        answers = [asyncio.create_task(ann.post(**question(f"a{n}"))) for n in range(QUESTIONS)]
        others = [(await bob.post(**question(f"b{n}"))).status_code for n in range(3)]
        answered = [await answer for answer in answers]
        ended.set()
        assert others == [200] * 3
        assert [await reader for reader in readers] == [TURNS] * READERS
        by_status = Counter(answer.status_code for answer in answered)
        assert by_status.keys() == {200, 429}
        assert AT_ONCE_ANSWERED <= by_status[200] <= A_MINUTE
        assert all(int(answer.headers["retry-after"]) > 0 for answer in answered if answer.status_code == 429)


async def test_requests_that_cannot_be_counted_in_time_are_refused_on_every_interface(
    serve: Serve, model: OpenAIServer
) -> None:
    before = REGISTRY.get_sample_value("turnlog_throttle_uncounted_refusals_total") or 0
    async with (
        serve("agent", api_base_url=model.url, model="m") as api,
        api.client() as ann,
        api.runtime.pool.connection() as conn,
        socket(api, "t", f"?token={api.token()}") as ws,
        conn.transaction(),
    ):
        api.runtime.cached(throttle_of).patience_s = 0.1
        await conn.execute("LOCK TABLE admissions IN ACCESS EXCLUSIVE MODE")
        for path, body in (
            ("/v1/chat/completions", question("t")["json"]),
            ("/v1/responses", {"model": "m", "input": "Is it?"}),
            ("/api/threads/t/answers", {"message": "Is it?"}),
            ("/api/threads/t/answers/stream", {"message": "Is it?"}),
            ("/ai-agent/chat", {"message": "Is it?"}),
        ):
            refused = await ann.post(path, json=body)
            assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True), refused.text
        await ws.send(json.dumps({"message": "Is it?"}))
        error = json.loads(await ws.recv())
        assert (error["type"], error["data"]["code"]) == ("error", "not-counted-in-time")
        assert error["data"]["retry_after"] > 0
        after = REGISTRY.get_sample_value("turnlog_throttle_uncounted_refusals_total") or 0
        assert (after - before, model.bodies()) == (6, [])
        assert REGISTRY.get_sample_value("turnlog_throttle_local") == 0


async def test_requests_over_the_concurrency_limit_of_a_credential_are_refused_at_once(serve: Serve) -> None:
    """Requests whose body has not arrived yet count as running."""
    async with serve() as api, api.client() as ann, api.client("bob") as bob:
        token, address = ann.headers["authorization"], urlsplit(api.url)
        without_body = f"POST /api/threads/t/turns HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
        without_body += "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
        writers = []
        for _ in range(MOST_REQUESTS):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(without_body.encode())
            writers.append(writer)

        async def answered(status: int) -> bool:
            return (await ann.get("/api/threads")).status_code == status

        await eventually(partial(answered, 429))
        refused = await ann.get("/api/threads")
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-waiting")
        assert int(refused.headers["retry-after"]) > 0
        assert (await bob.get("/api/threads")).status_code == 200
        for writer in writers:
            writer.close()
        await eventually(partial(answered, 200))


async def test_reads_of_one_user_take_turns_and_too_many_are_refused(serve: Serve) -> None:
    async with (
        serve() as api,
        api.client() as ann,
        api.client("bob") as bob,
        mcp_of(api) as hers,
        AsyncExitStack() as running,
    ):
        await ann.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "hello"}]})
        for _ in range(AT_ONCE):
            await running.enter_async_context(in_share(api.runtime, "default", "ann", "reads"))

        async def wait_in_line() -> None:
            async with in_share(api.runtime, "default", "ann", "reads"):
                pass

        others = [asyncio.create_task(wait_in_line()) for _ in range(WAITING - 1)]
        waiting = asyncio.create_task(ann.get("/api/threads"))
        while api.runtime.cached(Shares)["default", "ann", "reads"].requests < AT_ONCE + WAITING:
            await asyncio.sleep(0.01)
        refused = await ann.get("/api/threads/t/turns")
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-waiting")
        assert int(refused.headers["retry-after"]) > 0
        assert "[too-many-waiting]" in str(await hers.call_tool("recall", {"query": "hello"}))
        assert (await bob.get("/api/threads")).status_code == 200
        async with ann.stream("GET", "/api/threads/t/events") as response:  # a stream does not count as a read
            assert (await anext(server_events(response)))["event"] == "turn_recorded"
        await running.aclose()
        assert (await waiting).status_code == 200
        await asyncio.gather(*others)
        assert api.runtime.cached(Shares) == {}


async def test_embeddings_are_throttled_like_answers_and_another_user_goes_on(serve: Serve) -> None:
    async with serve("reactors") as api, api.client() as ann, api.client("bob") as bob:
        texts = {"model": "any", "input": [f"text {n} " * 10 for n in range(4)]}
        flood = [asyncio.create_task(ann.post("/v1/embeddings", json=texts)) for _ in range(30)]
        assert (await bob.post("/v1/embeddings", json={"model": "any", "input": "hello"})).status_code == 200
        assert (await bob.get("/health/ready")).status_code == 200
        answers = [await answer for answer in flood]
        by_status = Counter(answer.status_code for answer in answers)
        assert by_status.keys() == {200, 429} and by_status[200] >= AT_ONCE_ANSWERED
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert (refused.json()["error"]["type"], int(refused.headers["retry-after"]) > 0) == ("rate_limit_error", True)


async def test_embeddings_count_for_the_quota_and_end_with_their_client(serve: Serve, model: OpenAIServer) -> None:
    until, settings = threading.Event(), {"embedding_base_url": model.url, "embedding_model": "text-embedding-3-small"}
    model.vectors(until=until)
    async with serve(api_base_url=model.url, model="m", **settings) as api, api.client() as ann:
        many = {"model": "any", "input": [f"text {n}" for n in range(600)]}  # three calls of the embedding server
        left = asyncio.create_task(ann.post("/v1/embeddings", json=many))
        while not model.bodies("embeddings"):
            await asyncio.sleep(0.01)
        left.cancel()
        while (await used_of(ann))["concurrent"]:
            await asyncio.sleep(0.1)
        until.set()
        for _ in range(2):
            answer = await ann.post("/v1/embeddings", json={"model": "any", "input": "three short words"})
            assert answer.status_code == 200, answer.text
        assert [len(body["input"]) for body in model.bodies("embeddings")] == [256, 1, 1]
        used = await used_of(ann)
        assert (used["embedding_tokens_per_day"], used["tokens_per_day"]) == (6, 0)


async def used_of(client: httpx2.AsyncClient) -> dict[str, float]:
    return {limit["name"]: limit["used"] for limit in (await client.get("/api/limits")).json()}
