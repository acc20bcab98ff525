"""A user's limits apply to runs of a team on every interface: concurrency and rate (429), quota (402)."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from helpers.api import Api, Serve, openai_client
from helpers.callers import socket
from helpers.openai_bodies import Step
from helpers.openai_server import Kind
from helpers.stage import MemoryServer

from turnlog.agent.access.limits import change_limits

TASK = "Look at the essay"
ASKED: list[Any] = [{"role": "user", "content": "Hello"}]


def question(thread: str) -> dict[str, Any]:
    return {"url": f"/api/threads/{thread}/answers", "json": {"message": "Hello"}}


async def refusals(api: Api, user: str, role: str) -> list[tuple[str, int | None]]:
    """Returns the codes of the refusals by HTTP, WebSocket and /v1, with the status if there is one; each names a time
    to retry."""
    async with (
        api.client(user, role=role) as client,
        openai_client(api, user, role=role) as v1,
        socket(api, "more", f"?token={api.token(user, role=role)}") as ws,
    ):
        by_http = await client.post(**question("more"))
        assert int(by_http.headers["retry-after"]) > 0
        await ws.send(json.dumps({"message": "Hello"}))
        by_socket = json.loads(await ws.recv())
        assert by_socket["type"] == "error" and by_socket["data"]["retry_after"] > 0
        with pytest.raises(openai.APIStatusError) as by_v1:
            await v1.chat.completions.create(model="turnlog/orchestrator", messages=ASKED)
        assert int(by_v1.value.response.headers["retry-after"]) > 0
    return [
        (by_http.json()["code"], by_http.status_code),
        (by_socket["data"]["code"], None),
        (str(by_v1.value.code), by_v1.value.status_code),
    ]


class HandingOn(MemoryServer):
    """A model server whose runs delegate at once; the delegate's answer waits until `until` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.until = threading.Event()

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind != "chat":
            return super().next_step(kind, body)
        if TASK in json.dumps(body["messages"]):
            return Step(text="An essay.", until=self.until)
        return Step(tool_calls=[("delegate_to_agent", {"agent_type": "essay", "task_description": TASK})])


@pytest.fixture
def model() -> Iterator[HandingOn]:
    with HandingOn() as server:
        yield server
        server.until.set()


@pytest.mark.parametrize(("role", "at_once"), [("user", 2), ("vip", 5)])
async def test_concurrent_runs_are_limited_by_the_plan(serve: Serve, model: HandingOn, role: str, at_once: int) -> None:
    async with (
        serve("agent", api_base_url=model.url, model="m", team="advising") as api,
        api.client("ann", role=role) as ann,
        openai_client(api, "ann", role=role) as v1,
    ):
        asked: list[Callable[[int], Any]] = [
            lambda n: ann.post(**question(f"t{n}")),
            lambda _: v1.chat.completions.create(model="turnlog/orchestrator", messages=ASKED),
        ]
        running = [asyncio.ensure_future(asked[number % 2](number)) for number in range(at_once)]
        await asyncio.to_thread(model.wait_for_requests, 2 * at_once)
        code = "too-many-at-once"
        assert await refusals(api, "ann", role) == [(code, 429), (code, None), (code.replace("-", "_"), 429)]
        assert len(model.bodies("chat")) == 2 * at_once, "who is refused asks no model"
        model.until.set()
        for answer in await asyncio.gather(*running):
            if isinstance(answer, httpx2.Response):
                assert (answer.status_code, answer.json()["answer"]) == (201, "An essay.")
            else:
                assert answer.choices[0].message.content == "An essay."
        assert (await ann.post(**question("more"))).status_code == 201


async def test_a_delegate_takes_a_place_in_the_window_of_its_agent(serve: Serve, model: HandingOn) -> None:
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        await change_limits(api.runtime, "default", "user", {"agent_per_minute": 1})
        model.until.set()
        assert (await ann.post(**question("t"))).status_code == 201
        refused = await ann.post("/api/threads/u/answers", json={"message": "Hello", "agent": "essay"})
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
        other = await ann.post("/api/threads/u/answers", json={"message": TASK, "agent": "school"})
        assert other.status_code == 201, other.text


async def test_a_routed_question_takes_a_place_in_the_window_of_its_agent(serve: Serve, model: HandingOn) -> None:
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        await change_limits(api.runtime, "default", "user", {"agent_per_minute": 1})
        model.until.set()
        asked = await ann.post("/api/threads/t/answers", json={"message": f"Please polish my essay. {TASK}"})
        assert asked.status_code == 201, asked.text
        refused = await ann.post("/api/threads/u/answers", json={"message": TASK, "agent": "essay"})
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")


async def test_a_window_and_the_quota_are_used_up_by_runs_with_their_delegates(serve: Serve, model: HandingOn) -> None:
    async with serve("agent", api_base_url=model.url, model="m", team="advising") as api, api.client() as ann:
        model.until.set()
        assert (await ann.post(**question("t"))).status_code == 201
        await api.runtime.wait_until_projected()
        used = {limit["name"]: limit["used"] for limit in (await ann.get("/api/limits")).json()}
        planned, solved = (len(json.dumps(body["messages"]).split()) for body in model.bodies("chat"))
        assert used["tokens_per_day"] >= planned + solved, "the plan and the delegate's answer are both counted"
        await change_limits(api.runtime, "default", "user", {"user_per_minute": 1})
        code = "rate-limited"
        assert await refusals(api, "ann", "user") == [(code, 429), (code, None), (code.replace("-", "_"), 429)]
        await change_limits(
            api.runtime, "default", "user", {"user_per_minute": 30, "tokens_per_day": used["tokens_per_day"]}
        )
        code = "quota-exceeded"
        assert await refusals(api, "ann", "user") == [(code, 402), (code, None), ("insufficient_quota", 402)]
        assert len(model.bodies("chat")) == 2
