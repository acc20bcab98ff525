"""Two server processes on one log answer the questions of a conversation in order, even if one is killed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers.api import Api
from helpers.cli_process import environment
from helpers.faces import Ask, answer, completion, turns
from helpers.key_rings import KEK
from helpers.openai_bodies import Step
from helpers.preloaded_cli import begin_command
from helpers.servers import eventually
from helpers.stage import MemoryServer

from turnlog.agent.models.openai_http import tls_context

pytestmark = pytest.mark.nightly  # each test starts two processes


@asynccontextmanager
async def two_servers(
    api: Api, model: MemoryServer, nats_url: str, database_url: str, folder: Path
) -> AsyncIterator[list[tuple[Any, httpx2.AsyncClient]]]:
    """Yields the process and a client of each server."""
    variables = environment(folder, NATS_URL=nats_url, DATABASE_URL=database_url, TURNLOG_KEK=KEK)
    variables |= {"API_BASE_URL": model.url, "TURNLOG_MODEL": "m", "TOPIC_EXTRACTION": "false"}
    header = {"Authorization": f"Bearer {api.token(role='vip')}"}
    async with AsyncExitStack() as stack:
        outputs = [folder / f"serve-{number}.log" for number in range(2)]
        processes = [begin_command("serve", environment=variables, output=output) for output in outputs]
        for process in processes:
            stack.callback(process.kill)
        servers = []
        for process, output in zip(processes, outputs, strict=True):

            async def is_up(output: Path = output) -> bool:
                return "worker api runs at " in output.read_text()

            await eventually(is_up)
            url = output.read_text().split(" runs at ")[1].split()[0]
            client = httpx2.AsyncClient(base_url=url, headers=header, verify=tls_context(), timeout=60)
            servers.append((process, await stack.enter_async_context(client)))
        yield servers


def sent(model: MemoryServer) -> list[list[str]]:
    """Returns the messages of each request to the model."""
    asked = model.asked("answer")
    return [[message["content"] for message in body["messages"] if message["role"] != "system"] for body in asked]


@pytest.mark.parametrize("ask", [completion, answer])
async def test_questions_to_both_are_answered_in_order(
    api: Api, model: MemoryServer, nats_url: str, database_url: str, tmp_path: Path, ask: Ask
) -> None:
    async with two_servers(api, model, nats_url, database_url, tmp_path) as both:
        clients = [client for _, client in both]
        done = await asyncio.gather(*(ask(clients[at % 2], "t", f"Question {at}?") for at in range(6)))
        assert {reply.status_code // 100 for reply in done} == {2}, [reply.text for reply in done]
        said = await turns(clients[0], "t")
        assert sorted(said[::2]) == [f"Question {at}?" for at in range(6)]
        assert said[1::2] == [f"echo: {question}" for question in said[::2]]
        assert sent(model) == [said[: 2 * at + 1] for at in range(6)]


@pytest.mark.parametrize("ask", [completion, answer])
async def test_a_killed_server_does_not_delay_questions_to_the_other(
    api: Api, model: MemoryServer, nats_url: str, database_url: str, tmp_path: Path, ask: Ask
) -> None:
    async with two_servers(api, model, nats_url, database_url, tmp_path) as ((victim, first), (_, second)):
        go_on, before = threading.Event(), len(model.requests)
        model.first["answer"] = [Step(text="first", until=go_on)]
        killed = asyncio.create_task(ask(first, "t", "One?"))
        await asyncio.to_thread(model.wait_for_requests, before + 1)
        others = [asyncio.create_task(ask(second, "t", text)) for text in ("Two?", "Three?")]
        done, _ = await asyncio.wait(others, timeout=0.5)
        assert not done and len(sent(model)) == 1
        victim.kill()
        if ask is answer:  # the agent is another process and continues its answer
            done, _ = await asyncio.wait(others, timeout=1.5)
            assert not done and len(sent(model)) == 1
            go_on.set()
        assert [reply.status_code // 100 for reply in await asyncio.gather(*others)] == [2, 2]
        go_on.set()
        with pytest.raises(httpx2.HTTPError):
            await killed
        said = await turns(second, "t")
        head = ["One?", "first"] if ask is answer else ["One?"]
        earlier, later = said[len(head) :: 2]  # either connection may have been first
        assert {earlier, later} == {"Two?", "Three?"}
        assert said == [*head, earlier, f"echo: {earlier}", later, f"echo: {later}"]
        assert sent(model) == [["One?"], [*head, earlier], [*head, earlier, f"echo: {earlier}", later]]


async def test_a_retry_after_its_server_was_killed_is_answered_by_the_other_and_stored_once(
    api: Api, model: MemoryServer, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    async with two_servers(api, model, nats_url, database_url, tmp_path) as ((victim, first), (_, second)):
        go_on, before, tries = threading.Event(), len(model.requests), "x-stainless-retry-count"
        model.first["answer"] = [Step(text="first", until=go_on)]
        killed = asyncio.create_task(completion(first, "t", "One?", {tries: "0"}))
        await asyncio.to_thread(model.wait_for_requests, before + 1)
        retry = asyncio.create_task(completion(second, "t", "One?", {tries: "1"}))
        assert not (await asyncio.wait([retry], timeout=0.5))[0] and len(sent(model)) == 1
        victim.kill()
        assert (await retry).json()["choices"][0]["message"]["content"] == "echo: One?"
        go_on.set()
        with pytest.raises(httpx2.HTTPError):
            await killed
        assert await turns(second, "t") == ["One?", "echo: One?"]
