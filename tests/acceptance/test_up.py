"""`turnlog up` runs once per home, ends cleanly, keeps its files private, and restarts its servers."""

import asyncio
import contextlib
import json
import re
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from typing import Any

import httpx2
import nats
import psutil
import psycopg
import pytest
from helpers.cli_process import COMMAND, environment
from helpers.embedded_home import kill, pids
from helpers.preloaded_cli import run_command
from helpers.prepared_home import copy_database
from helpers.sample_events import event, turn
from helpers.servers import eventually, files_with, processes_left_in
from nats.js.errors import NotFoundError
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from turnlog.agent.settings import Settings
from turnlog.consumers.servers import Servers, background, start, stop
from turnlog.consumers.servers.home import home_at, locked
from turnlog.events.contracts import AnswerRequested
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import STREAM

pytestmark = pytest.mark.slow


@pytest.fixture
async def up_home(home: Path) -> AsyncIterator[Path]:
    """Yields a home whose `up` ends with the test."""
    yield home
    await background.stop(Settings(home=home))


@dataclass(frozen=True, slots=True)
class Up:
    """A running `up` that had to use another port than its default one and logs at the level DEBUG."""

    home: Path
    pid: int
    url: str
    log: Path


@pytest.fixture(scope="module")
async def up(prepared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """Starts an `up` for all following tests; the last of them kills it."""
    home = copy_database(prepared_home, tmp_path_factory.mktemp("up") / "home")
    home.chmod(0o755)
    log = background.log_path(Settings(home=home))
    log.touch(0o644)
    variables = environment(home, TURNLOG_LOG_LEVEL="DEBUG")
    del variables["TURNLOG_API_PORT"]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another program has the port already
            stack.enter_context(create_server(("127.0.0.1", 8484)))
        done = await asyncio.to_thread(run_command, "up", "--detach", environment=variables)
    assert done.code == 0, done.err
    said = re.search(r"at (http://127.0.0.1:\d+) \(pid (\d+)\)", done.out)
    assert said is not None, done.out
    yield Up(home, int(said[2]), said[1], log)
    await background.stop(Settings(home=home))
    await stop(home)
    assert processes_left_in(home) == []


async def command(home: Path, *words: str) -> tuple[int, Any]:
    """Runs a command and returns (exit code, document)."""
    done = await asyncio.to_thread(run_command, *words, "--json", environment=environment(home))
    return done.code, json.loads(done.out)


def ups_of(home: Path) -> list[int]:
    """Returns the pid of every running `up` with this home in its environment."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ", "status"])
        if (process.info["environ"] or {}).get("TURNLOG_HOME") == str(home)
        and "up" in (process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.nightly
async def test_of_three_concurrent_ups_one_runs_and_down_ends_everything(up_home: Path) -> None:
    done = await asyncio.gather(*(command(up_home, "up", "--detach") for _ in range(3)))
    [up] = [document for code, document in done if code == 0]
    assert [document["error"]["code"] for code, document in done if code != 0] == ["already-up", "already-up"]
    assert ups_of(up_home) == [up["pid"]]
    assert await command(up_home, "down") == (0, {"stopped": True, "pid": up["pid"]})
    assert await command(up_home, "down") == (0, {"stopped": True, "pid": None})  # none was running any more
    assert (ups_of(up_home), processes_left_in(up_home)) == ([], [])


async def test_an_up_that_is_still_starting_is_found_and_ended(up_home: Path) -> None:
    settings = Settings(home=up_home)
    async with locked(home_at(up_home)):  # so that `up` waits before it starts the servers
        up = await asyncio.create_subprocess_exec(
            *COMMAND, "up", env=environment(up_home), stdout=DEVNULL, stderr=DEVNULL
        )

        async def is_seen() -> bool:
            return background.running_pid(settings) == up.pid

        await eventually(is_seen)
        assert await background.stop(settings) == up.pid
        await up.wait()
    assert (ups_of(up_home), processes_left_in(up_home)) == ([], [])


@pytest.mark.nightly
async def test_a_start_that_fails_in_the_background_has_the_code_and_message_of_its_cause(up_home: Path) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        variables = environment(up_home, TURNLOG_API_PORT=str(taken.getsockname()[1]))
        done = await asyncio.to_thread(run_command, "up", "--detach", environment=variables)
    assert done.err.startswith("error: turnlog did not start: the API cannot listen on 127.0.0.1:")
    assert done.err.endswith("to a free port [port-taken]\n")


async def is_answered(servers: Servers, thread: str) -> None:
    """Asks in the thread, and waits until question and answer are in the read model."""
    log = await Log.connect(servers.nats_url, StreamOptions())
    question = turn("What is left to do?", thread=thread)
    await log.append_many([question, event(AnswerRequested(turn_id=question.id), thread)])
    await log.close()

    async def has_both() -> bool:
        try:
            async with await psycopg.AsyncConnection.connect(servers.database_url) as db:
                roles = await db.execute("SELECT role FROM messages WHERE thread_id = %s", (thread,))
                return {"user", "assistant"} <= {role for (role,) in await roles.fetchall()}
        except psycopg.OperationalError:  # Postgres is starting
            return False

    await eventually(has_both)


async def test_up_uses_another_port_if_its_port_is_taken_and_keeps_its_folder_private(up: Up) -> None:
    assert up.url == f"http://127.0.0.1:{(up.home / 'api-port').read_text()}"
    async with httpx2.AsyncClient(base_url=up.url, timeout=60) as http:
        assert (await http.get("/health/live")).status_code == 200
    assert [path.name for path in (up.home, *up.home.iterdir()) if path.stat().st_mode & 0o066] == []


async def test_no_log_has_the_token_of_a_socket(up: Up) -> None:
    """Tests the query of a WebSocket, a refused WebSocket and a request while everything is logged."""
    token = (await command(up.home, "token", "--user", "ann"))[1]["token"]
    socket_url = up.url.replace("http", "ws")
    chat = f"/xyzen/ws/v1/chat/sessions/s/topics/t?token={token}"
    async with connect(f"{socket_url}{chat}", proxy=None) as socket:
        await socket.send('{"message": "hello"}')
        assert json.loads(await socket.recv())["type"] == "message_saved"
    for path, headers in ((f"{chat}x", {}), (chat, {"Origin": "http://evil.example"}), (f"/mcp?token={token}", {})):
        with pytest.raises(InvalidStatus):
            async with connect(f"{socket_url}{path}", proxy=None, additional_headers=headers):
                pass
    assert re.search(r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d+ DEBUG", up.log.read_text("utf-8"), re.MULTILINE)
    assert files_with(up.home, [token.rpartition(".")[2]]) == set()


async def test_a_printed_link_opens_the_page_and_no_log_has_its_ticket(up: Up) -> None:
    done = await asyncio.to_thread(run_command, "page", "--user", "ann", environment=environment(up.home))
    page, _, ticket = done.out.strip().partition("#ticket=")
    async with httpx2.AsyncClient(timeout=60) as client:
        policy = (await client.get(page)).headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        signed_in = [await client.post(f"{up.url}/api/sign-in", json={"ticket": ticket}) for _ in range(2)]
        assert [answer.status_code for answer in signed_in] == [200, 401], done.err
        token = signed_in[0].json()["token"]
        caller = await client.get(f"{up.url}/api/caller", headers={"Authorization": f"Bearer {token}"})
    assert (caller.json()["user"], caller.json()["role"]) == ("ann", "admin")
    assert "ticket=" not in up.log.read_text("utf-8") and ticket not in up.log.read_text("utf-8")


async def test_killed_servers_are_restarted_and_later_turns_are_projected_and_answered(up: Up) -> None:
    servers = await start(up.home)
    for name in ("nats", "postgres"):
        before = pids(up.home)[name]
        await kill(up.home, name)

        async def runs_again(name: str = name, before: int = before) -> bool:
            return pids(up.home).get(name, before) != before

        await eventually(runs_again)
        await is_answered(servers, name)
    assert ups_of(up.home) == [up.pid]
    lines = up.log.read_text("utf-8")
    for name in ("nats-server", "Postgres"):
        assert re.search(f"{name} ended unexpectedly and is started again.*{name} runs again", lines, re.DOTALL)


async def test_deleted_durables_and_a_killed_up_are_reported_by_checks(up: Up) -> None:
    """Readiness is red until the durables exist again, and then a question is answered. After a kill no check says
    ok."""
    servers, seen = await start(up.home), set[str]()
    async with httpx2.AsyncClient(base_url=up.url, timeout=60) as http, await nats.connect(servers.nats_url) as client:
        js, durables = client.jetstream(), ("agent", "extraction", "memory", "segments", "analytics")

        async def all_were_red() -> bool:
            """Deletes the durables that were not seen red yet, because one may be recreated before readiness is
            checked."""
            for name in durables:
                if f"{name}-fetch" not in seen:
                    with contextlib.suppress(NotFoundError):
                        await js.delete_consumer(STREAM, name)
            ready = await http.get("/health/ready")
            seen.update(ready.json()["broken"])
            assert (ready.status_code == 503) == bool(ready.json()["broken"])
            return seen >= {f"{name}-fetch" for name in durables}

        async def is_green() -> bool:
            return (await http.get("/health/ready")).status_code == 200

        await eventually(is_green)
        await eventually(all_were_red)
        await eventually(is_green)
    await is_answered(servers, "after")
    process = psutil.Process(up.pid)
    process.kill()
    await asyncio.to_thread(psutil.wait_procs, [process], 10)
    said = f"turnlog up (pid {up.pid}) died, no role runs"
    code, findings = await command(up.home, "doctor")
    assert (code, [finding["detail"] for finding in findings if not finding["ok"]]) == (1, [said])
    code, lag = await command(up.home, "lag")
    assert (code, lag["died"]) == (1, [said])
    assert (await command(up.home, "down"))[0] == 0
    code, findings = await command(up.home, "doctor")
    assert (code, [finding["detail"] for finding in findings if finding["check"] == "processes"]) == (
        0,
        ["no process plays a role, so nothing is served"],
    )
