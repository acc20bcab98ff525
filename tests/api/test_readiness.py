"""Readiness turns red for a part that has stopped, but not for a slow part."""

import asyncio
from typing import Any

import httpx2
import pytest
from helpers.api import Serve
from helpers.servers import eventually
from helpers.stage import MemoryServer
from psycopg import AsyncConnection

from turnlog.consumers import runtime

pytestmark = pytest.mark.slow

SAID = {"turns": [{"role": "user", "content": "hello"}]}
STOPPED_S = 1.0


async def readiness(client: httpx2.AsyncClient) -> tuple[int, dict[str, Any]]:
    answer = await client.get("/health/ready")
    return answer.status_code, answer.json()


async def red(client: httpx2.AsyncClient, part: str, name: str) -> None:
    async def is_red() -> bool:
        status, document = await readiness(client)
        assert document["ready"] == (status == 200)
        return status == 503 and name in document[part]

    await eventually(is_red)


async def green(client: httpx2.AsyncClient) -> None:
    async def is_green() -> bool:
        return (await readiness(client))[0] == 200

    await eventually(is_green)


async def test_a_projector_that_waits_for_a_lock_is_named(serve: Serve) -> None:
    async with serve(stalled_after_s=STOPPED_S) as api, api.client() as ann:
        await ann.post("/api/threads/t/turns", json=SAID)
        await green(ann)
        async with await AsyncConnection.connect(api.runtime.database_url) as held:
            await held.execute("LOCK TABLE turnlog.messages IN ACCESS EXCLUSIVE MODE")
            await ann.post("/api/threads/t/turns", json=SAID)
            await red(ann, "stalled", "messages")
        await green(ann)
        assert len((await ann.get("/api/threads/t/turns")).json()["items"]) == 2


async def test_a_request_whose_statement_takes_too_long_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "REQUEST_STATEMENT_S", 1.0)
    async with serve() as api, api.client() as ann:
        await ann.post("/api/threads/t/turns", json=SAID)
        async with await AsyncConnection.connect(api.runtime.database_url) as held:
            await api.runtime.wait_until_projected()
            await held.execute("LOCK TABLE turnlog.messages IN ACCESS EXCLUSIVE MODE")
            slow = await ann.get("/api/threads/t/turns")
            assert (slow.status_code, slow.json()["code"]) == (503, "too-slow")
            assert slow.headers["retry-after"] == "5"
        assert (await ann.get("/api/threads/t/turns")).status_code == 200


async def test_an_agent_whose_model_hangs_is_named(serve: Serve, model: MemoryServer) -> None:
    settings: dict[str, Any] = {"api_base_url": model.url, "model": "m", "model_timeout_s": 600}
    model.hang()
    async with (
        serve("agent", reactor_stalled_after_s=STOPPED_S, **settings) as api,
        api.client() as ann,
        asyncio.TaskGroup() as group,
    ):
        await green(ann)
        asking = group.create_task(ann.post("/api/threads/t/answers", json={"message": "hello"}))
        await red(ann, "stuck", "agent")
        assert (await readiness(ann))[1]["stalled"] == []
        asking.cancel()


@pytest.mark.nightly
async def test_an_agent_that_works_through_a_backlog_is_ready(serve: Serve, model: MemoryServer) -> None:
    """Each answer takes a third of the time after which the agent counts as stopped; all answers together take twice
    that time."""
    questions = 6
    settings: dict[str, Any] = {"api_base_url": model.url, "model": "m", "agent_parallel": 1}
    for _ in range(questions):
        model.reply("slow", delay=2 * STOPPED_S)
    async with (
        serve("agent", reactor_stalled_after_s=6 * STOPPED_S, **settings) as api,
        api.client() as ann,
        asyncio.TaskGroup() as group,
    ):
        users = [api.client(f"user{number}") for number in range(questions)]
        async with users[0] as a, users[1] as b, users[2] as c, users[3] as d, users[4] as e, users[5] as f:
            asked = [
                group.create_task(user.post(f"/api/threads/{at}/answers", json={"message": "hello"}))
                for at, user in enumerate((a, b, c, d, e, f))
            ]

            async def all_answered() -> bool:
                status, document = await readiness(ann)
                assert status == 200, document
                return all(task.done() for task in asked)

            await eventually(all_answered)
            assert {task.result().status_code for task in asked} == {201}


async def test_an_agent_whose_model_is_away_is_ready(serve: Serve) -> None:
    settings: dict[str, Any] = {"api_base_url": "http://127.0.0.1:9/v1", "model": "m"}
    async with serve("agent", **settings) as api, api.client() as ann:
        for _ in range(3):
            answer = await ann.post("/api/threads/t/answers", json={"message": "hello"})
            assert (answer.status_code, answer.json()["code"]) == (502, "no-answer")
            status, state = await readiness(ann)
            assert status == 200, state
