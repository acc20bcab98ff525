"""compose.yaml works without Docker: real nats-servers with its configuration, and its services as processes."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import nats
import pytest
import yaml
from helpers.key_rings import KEK
from helpers.servers import eventually
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from turnlog.consumers.servers.binaries import nats_binary
from turnlog.consumers.servers.nats_config import NatsAddress
from turnlog.consumers.servers.nats_server import Answer, free_port, probe

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text("utf-8"))
NODES = [name for name in COMPOSE["services"] if name.startswith("nats-")]
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")
TURNLOG = [sys.executable, "-m", "turnlog.consumers.cli"]
# Variables that an operator sets: passwords other than the defaults, and the two secrets without a default.
GIVEN = {"TURNLOG_NATS_TOKEN": "another", "TURNLOG_KEK": KEK, "TURNLOG_API_SECRET": "compose" * 6}


def interpolated(text: str) -> str:
    return VARIABLE.sub(lambda match: GIVEN.get(match[1], match[2] or ""), text)


@contextlib.asynccontextmanager
async def running(command: list[str], log: Path, environment: dict[str, str] | None = None) -> AsyncIterator[None]:
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out, env=environment)
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 90)


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Callable[[str], str]]:
    """Starts the servers of compose.yaml on free local ports; yields a function that replaces their addresses in a
    text."""
    clients, routes = ({node: free_port() for node in NODES} for _ in range(2))

    def local(text: str) -> str:
        for node in NODES:
            text = text.replace(f"{node}:4222", f"127.0.0.1:{clients[node]}")
            text = text.replace(f"{node}:6222", f"127.0.0.1:{routes[node]}")
        return text

    async with contextlib.AsyncExitStack() as stack:
        for node in NODES:
            text = local(interpolated(COMPOSE["configs"]["nats"]["content"])).replace("http: 8222", "")
            text = text.replace("port: 4222", f"port: {clients[node]}").replace("port: 6222", f"port: {routes[node]}")
            config = folder / f"{node}.conf"
            config.write_text(text.replace("/data", str(folder / node)), "utf-8")
            arguments = COMPOSE["services"][node]["command"][2:]
            command = [str(nats_binary()), "--config", str(config), *arguments]
            await stack.enter_async_context(running(command, folder / f"{node}.log"))
        yield local


def environment_of(service: str, local: Callable[[str], str], database_url: str, folder: Path) -> dict[str, str]:
    composed = {name: local(interpolated(value)) for name, value in COMPOSE["services"][service]["environment"].items()}
    own = {"DATABASE_URL": database_url, "TURNLOG_HOME": str(folder / service)}
    own["TURNLOG_METRICS_PORT"] = str(free_port())  # here all services share a machine
    return {"PATH": os.environ["PATH"], "HOME": str(folder), **composed, **own}


@pytest.mark.nightly
async def test_api_and_projectors_work_with_the_accounts_and_the_environment_of_compose(
    database_url: str, tmp_path: Path
) -> None:
    port = str(free_port())
    async with cluster(tmp_path) as local, contextlib.AsyncExitStack() as stack:
        for service in ("projectors", "api"):
            environment = environment_of(service, local, database_url, tmp_path) | {"TURNLOG_API_PORT": port}
            command = [*TURNLOG, *COMPOSE["services"][service]["command"]]
            await stack.enter_async_context(running(command, tmp_path / f"{service}.log", environment))
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:

            async def is_ready() -> bool:
                with contextlib.suppress(httpx2.HTTPError):
                    return (await client.get("/health/ready")).status_code == 200
                return False

            await eventually(is_ready, 120)
            client.headers["Authorization"] = f"Bearer {await printed(['token', '--user', 'ann'], environment)}"
            root = f"Bearer {await printed(['token', '--user', 'root', '--role', 'admin'], environment)}"
            said = {"turns": [{"role": "user", "content": "My corgi is called Sesame."}]}
            assert (await client.post("/api/threads/t/turns", json=said)).status_code == 201
            context = await client.get("/api/threads/t/context", params={"query": "What is my dog called?"})
            assert "Sesame" in context.text, context.text
            limits = {"user_per_minute": 7}  # one process signs the event, and the other checks it
            changed = await client.put("/api/operations/limits/user", json=limits, headers={"Authorization": root})
            assert (changed.status_code, changed.json()["user"]["user_per_minute"]) == (200, 7), changed.text
        urls = environment["NATS_URL"].split(",")
        await the_log_has_as_many_copies_as_there_are_servers(urls[0])
        await only_the_password_of_the_environment_opens_it(urls[0])
        await printed(COMPOSE["services"]["projectors"]["healthcheck"]["test"][2:], environment)


async def printed(arguments: list[str], environment: dict[str, str]) -> str:
    """Runs a turnlog command, which must succeed, and returns its output."""
    made = await asyncio.create_subprocess_exec(
        *TURNLOG, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
    )
    out, problem = await made.communicate()
    assert made.returncode == 0, problem.decode()
    return out.decode().strip()


async def the_log_has_as_many_copies_as_there_are_servers(url: str) -> None:
    async with await nats.connect(url) as nc:
        stream = await nc.jetstream().stream_info("TURNLOG")
        assert stream.config.num_replicas == len(NODES) == 3
        with pytest.raises((NatsError, APIError)):
            await nc.jetstream().publish("elsewhere", b"{}", timeout=1)


async def only_the_password_of_the_environment_opens_it(url: str) -> None:
    port = int(url.rsplit(":", 1)[1])
    assert await probe(NatsAddress(port, "turnlog"), NODES[0]) is Answer.STRANGER
    assert await probe(NatsAddress(port, GIVEN["TURNLOG_NATS_TOKEN"]), NODES[0]) is Answer.READY
