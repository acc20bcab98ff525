"""A shell completes the words of the command `turnlog`."""

import asyncio
from pathlib import Path

import pytest
from helpers.cli import environment_of
from helpers.preloaded_cli import run_command
from helpers.sample_events import turn

from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner


async def completed(environment: dict[str, str], *words: str) -> list[str]:
    """Returns bash's completions of the last word."""
    asking = {"_TURNLOG_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("turnlog", *words))}
    done = await asyncio.to_thread(run_command, environment=environment | asking | {"COMP_CWORD": str(len(words))})
    assert (done.code, done.err) == (0, "")
    return done.out.split()


async def test_threads_and_users_of_running_servers_are_completed(
    log: Log, nats_url: str, database_url: str, tmp_path: Path, running_projectors: Runner
) -> None:
    await log.append_many([turn("hello", thread="trip", user="ann"), turn("你好", thread="选校", user="林薇")])
    environment = environment_of(nats_url, database_url, tmp_path)
    assert await completed(environment, "messages", "t") == ["trip"]
    assert await completed(environment, "session", "show", "") == ["trip", "选校"]
    assert await completed(environment, "memories", "--user", "") == ["ann", "林薇"]
    assert await completed(environment, "threads", "--tenant", "acme", "--user", "") == []


async def test_completion_starts_no_server(tmp_path: Path) -> None:
    environment = environment_of("", "", tmp_path / "none")
    del environment["NATS_URL"], environment["DATABASE_URL"]
    assert await completed(environment, "messages", "t") == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("worker", "a"), ["agent", "analytics", "api"]),
        (("import", "x", "--format", "o"), ["openai", "open-webui"]),
        (("api-key", "create", "--role", ""), ["user", "vip", "admin"]),
        (("compac",), ["compactions"]),
    ],
)
async def test_roles_and_formats_are_completed(words: tuple[str, ...], values: list[str], tmp_path: Path) -> None:
    assert await completed(environment_of("", "", tmp_path), *words) == values
