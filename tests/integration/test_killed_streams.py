"""The API, NATS or Postgres is killed while answers stream; returning clients get the rest, and each question has one
answer."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from helpers import nightly
from helpers.api import server_events, token_of
from helpers.cli_process import environment
from helpers.key_rings import KEK
from helpers.own_servers import OwnServers, own_servers
from helpers.preloaded_cli import begin_command
from helpers.servers import eventually
from helpers.stage import MemoryServer, Stage, on_stage

from turnlog.agent.models.openai_http import tls_context

pytestmark = pytest.mark.slow

ANSWER = "one two three four five six"
HANGS_S = 180.0


@dataclass(slots=True)
class Reader:
    """A client with one question. It sends the question under one key until it knows its sequence; after that it
    requests the rest after the last event that it has seen."""

    http: httpx2.AsyncClient
    thread: str
    headers: dict[str, str]
    key: str = field(default_factory=lambda: uuid4().hex)
    seq: int | None = None
    last: str | None = None
    text: str = ""
    answer: str | None = None

    async def is_answered(self) -> bool:
        """Returns whether the question is answered after one more request, which may break off. Fails if no event comes
        in HANGS_S."""
        try:
            async with self._request() as response:
                if response.is_success:
                    await self._read(response)
        except httpx2.TransportError:
            pass
        return self.answer is not None

    def _request(self) -> Any:
        path = f"/api/threads/{self.thread}/answers"
        if self.seq is None:
            headers = self.headers | {"Idempotency-Key": self.key}
            return self.http.stream("POST", f"{path}/stream", json={"message": "Count to six."}, headers=headers)
        headers = self.headers | ({"Last-Event-ID": self.last} if self.last else {})
        return self.http.stream("GET", f"{path}/{self.seq}", headers=headers)

    async def _read(self, response: httpx2.Response) -> None:
        async with asyncio.timeout(HANGS_S) as patience, aclosing(server_events(response)) as events:
            async for event in events:
                patience.reschedule(asyncio.get_running_loop().time() + HANGS_S)
                self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        self.last = event.get("id", self.last)
        match event["event"]:
            case "started":
                self.seq = event["data"]["seq"]
            case "content":
                self.text += event["data"]["chunk"]
            case "restart":
                self.text = ""
            case "done":
                self.answer = event["data"]["response"]["answer"]


@dataclass(slots=True)
class Api:
    """A `turnlog serve` process on a port that stays the same after a restart."""

    settings: dict[str, str]
    output: Path
    port: int
    process: BaseProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.process = begin_command("serve", "--port", str(self.port), environment=self.settings, output=self.output)

        async def is_ready() -> bool:
            async with httpx2.AsyncClient(verify=tls_context()) as http:
                try:
                    return (await http.get(f"{self.url}/health/live")).is_success
                except httpx2.TransportError:
                    return False

        await eventually(is_ready)

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.join)


@dataclass(frozen=True, slots=True)
class Scene:
    own: OwnServers
    stage: Stage
    api: Api
    model: MemoryServer

    async def kill(self, victim: str) -> None:
        await (self.api.kill() if victim == "api" else self.own.kill(victim))

    async def back(self, victim: str) -> None:
        await (self.api.start() if victim == "api" else self.own.back())

    def readers(self, http: httpx2.AsyncClient, count: int) -> list[Reader]:
        """Returns readers with separate users and threads, so that the throttle counts them separately."""
        tokens = (token_of(self.stage.runtime, f"user-{number}", role="admin") for number in range(count))
        return [Reader(http, f"t{number}", {"Authorization": f"Bearer {token}"}) for number, token in enumerate(tokens)]

    async def turns(self, thread: str) -> list[tuple[str, Any]]:
        """Returns (role, content) of each turn on the log."""
        return [(data.role, data.content) for data in await self.stage.all("turn_recorded", thread)]


@pytest.fixture
async def scene(home: Path) -> AsyncIterator[Scene]:
    """Plays all roles except the API in this process; they continue when a server is killed."""
    async with AsyncExitStack() as stack:
        model = stack.enter_context(MemoryServer())
        own = await stack.enter_async_context(own_servers(home))
        settings = own.settings(api_base_url=model.url, model="m")
        stage = await stack.enter_async_context(on_stage(settings, ["projectors", "agent"]))
        where = {"NATS_URL": own.where.nats_url, "DATABASE_URL": own.where.database_url, "TURNLOG_KEK": KEK}
        api = Api(environment(home, **where), home / "api.log", free_port())
        await api.start()
        stack.push_async_callback(api.kill)
        yield Scene(own, stage, api, model)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["api", "nats", "postgres"])
async def test_each_question_has_one_answer_after_a_kill(scene: Scene, victim: str) -> None:
    """Half of the answers stream when the victim is killed; the other questions are asked while it is down."""
    count, goes_on = 100 if nightly.FULL else 10, threading.Event()
    for _ in range(count // 2):
        scene.model.reply(ANSWER, until=goes_on, after=3)
    for _ in range(count // 2):
        scene.model.reply(ANSWER)
    async with httpx2.AsyncClient(base_url=scene.api.url, verify=tls_context(), timeout=HANGS_S) as http:
        readers = scene.readers(http, count)
        early, late = readers[: count // 2], readers[count // 2 :]

        async def stream() -> bool:
            return all(reader.text for reader in early)

        async with asyncio.TaskGroup() as asked:
            for reader in early:
                asked.create_task(eventually(reader.is_answered))
            await eventually(stream)
            await scene.kill(victim)
            for reader in late:
                asked.create_task(eventually(reader.is_answered))
            goes_on.set()
            await scene.back(victim)
    for reader in readers:
        assert reader.text == reader.answer, reader
        assert await scene.turns(reader.thread) == [("user", "Count to six."), ("assistant", reader.answer)]
