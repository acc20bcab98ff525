"""`turnlog session …` and the metrics of a worker, run as processes."""

import asyncio
import json
import os
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from helpers.cli_process import COMMAND
from helpers.preloaded_cli import run_command
from helpers.sample_events import event, turn
from helpers.servers import eventually

from turnlog.events.contracts import SegmentCheckpointRequested, SessionCreated
from turnlog.events.log import Log

pytestmark = pytest.mark.slow


@pytest.fixture
def environment(nats_url: str, database_url: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return kept | {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(tmp_path), "COLUMNS": "200"}


async def turnlog(environment: dict[str, str], *words: str) -> tuple[int, str]:
    """Returns the exit code and the output on stdout, or on stderr if stdout is empty."""
    done = await asyncio.to_thread(run_command, *words, environment=environment)
    return done.code, done.out or done.err


async def a_session(log: Log) -> None:
    said = [turn(f"message {n}", "user" if n % 2 else "assistant", minutes=n) for n in range(1, 9)]
    await log.append_many([event(SessionCreated(), user="ann"), *said])


async def test_a_session_is_shown_checkpointed_listed_and_reset(log: Log, environment: dict[str, str]) -> None:
    await a_session(log)

    async def document(*words: str) -> Any:
        code, text = await turnlog(environment, "session", *words, "--json")
        assert code == 0, text
        return json.loads(text)

    shown = await document("show", "t")
    assert (shown["meta"]["user_id"], shown["flow_context"]["turn_count"]) == ("ann", 4)
    made = await document("checkpoint", "t", "--summary", "Ann said things.", "--recent-turns", "1")
    assert made["message_context"]["mode"] == "SUMMARY_N"
    [checkpoint] = await document("checkpoints", "t")
    assert (checkpoint["summary"], checkpoint["turns_covered"], checkpoint["trigger"]) == (
        "Ann said things.",
        3,
        "manual",
    )
    state = ("--intent", "book", "--slots", '{"desk": {"城市": "柏林"}}', "--pending", '{"ask": "date"}')
    await document("set", "t", *state, "--snapshot", '{"name": "Ann"}')
    code, text = await turnlog(environment, "session", "set", "t", "--snapshot", '{"allergies": ["nuts"]}')
    assert code == 0
    assert text.splitlines()[3:8] == [
        'agent slots: {"desk": {"城市": "柏林"}}',
        "current intent: book",
        'pending action: {"ask": "date"}',
        "name: Ann",
        'allergies: ["nuts"]',
    ]
    assert text.splitlines()[0] == "t  user ann  4 turns"
    assert "summary  Ann said things." in text
    assert (await document("reset", "t"))["flow_context"]["turn_count"] == 0


async def test_a_session_begins_with_existing_turns_and_its_history_is_shown(
    log: Log, environment: dict[str, str]
) -> None:
    await log.append_many([turn(f"message {n}", "user" if n % 2 else "assistant", minutes=n) for n in range(1, 9)])
    rules = ("--window", "256", "--threshold", "0.5", "--recent-turns", "1")
    code, text = await turnlog(environment, "session", "create", "t", "--user", "ann", *rules)
    assert (code, text.splitlines()[0]) == (0, "t  user ann  4 turns"), text
    code, text = await turnlog(environment, "session", "context", "t", "--query", "what else?")
    head, *history = text.splitlines()
    assert head.startswith("FULL_HISTORY  ")
    assert head.endswith(" of the window")
    assert history[:2] == ["User: message 1", "Assistant: message 2"]
    long = "and then? " * 60
    code, text = await turnlog(environment, "session", "context", "t", "--query", long, "--json")
    shown = json.loads(text)
    assert (code, shown["should_checkpoint_summary"], shown["token_ratio"] > 0.5) == (0, True, True)
    asked = [
        stored.event.data async for stored in log.read_thread("default", "t", types=("segment_checkpoint_requested",))
    ]
    [request] = [data for data in asked if isinstance(data, SegmentCheckpointRequested)]
    assert (request.rules.model_context_window, request.rules.recent_turns) == (256, 1)
    code, text = await turnlog(environment, "session", "create", "t")
    assert (code, text.splitlines()[0]) == (0, "t  user ann  0 turns")


@pytest.mark.parametrize("words", [(), ("--slots", "[]")])
async def test_a_change_of_a_session_that_cannot_be_read_is_refused(
    words: tuple[str, ...], environment: dict[str, str]
) -> None:
    code, text = await turnlog(environment, "session", "set", "t", *words, "--json")
    assert (code, json.loads(text)["error"]["code"]) == (1, "bad-option")


@pytest.mark.parametrize("words", [("show", "nobody"), ("context", "nobody"), ("context", "")])
async def test_an_unknown_session_is_a_plain_error(words: tuple[str, str], environment: dict[str, str]) -> None:
    code, text = await turnlog(environment, "session", *words, "--json")
    error = json.loads(text)["error"]
    assert (code, error["code"]) == (1, "not-found" if words[1] else "invalid-id")
    assert words[1] == "" or "`turnlog session create`" in error["message"]


async def test_another_users_conversation_is_reported_like_a_missing_one(log: Log, environment: dict[str, str]) -> None:
    await a_session(log)
    code, text = await turnlog(environment, "session", "create", "t", "--user", "bob", "--json")
    _, nobodys = await turnlog(environment, "session", "show", "x", "--json")
    assert (code, json.loads(text)["error"]["code"]) == (1, "not-found")
    assert text == nobodys.replace("'x'", "'t'")


@pytest.mark.nightly
async def test_a_worker_serves_metrics_and_a_second_one_on_its_port_says_why_it_cannot(
    log: Log, environment: dict[str, str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment |= {"TURNLOG_METRICS_PORT": str(port), "TURNLOG_PLAINTEXT": "yes"}
    worker = await asyncio.create_subprocess_exec(
        *COMMAND, "worker", "reactors", env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:

        async def is_served() -> bool:
            return "turnlog_session_checkpoints" in await asyncio.to_thread(page, port)

        await eventually(is_served)
        code, text = await turnlog(environment, "worker", "projectors", "--json")
        assert (code, json.loads(text)["error"]["code"]) == (1, "metrics-port-taken")
    finally:
        worker.terminate()
        await worker.wait()


def page(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
