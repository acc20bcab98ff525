"""Commands load only the modules that they need, because loading takes most of the time of a short command."""

import os
import subprocess
from pathlib import Path

import pytest
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.cli_process import COMMAND
from helpers.nightly import part

from turnlog.agent.conversations.threads import open_thread
from turnlog.agent.settings import Settings, load_settings
from turnlog.consumers.runtime import opened, projecting

pytestmark = pytest.mark.slow

PROJECTING = {"sqlalchemy", "turnlog.projectors.engine.engine", "turnlog.projectors.models.registry"}
OTHERS = {"alembic", "faststream", "numpy", "openai", "rich.progress", "rjieba"}
READING = (
    ("threads",),
    ("messages", "t"),
    ("memories", "--user", "ann"),
    ("entities", "--user", "ann"),
    ("usage",),
    ("lag",),
)


@pytest.fixture
def settings(nats_url: str, database_url: str, tmp_path: Path) -> Settings:
    return load_settings(nats_url=nats_url, database_url=database_url, home=tmp_path)


def loaded(*words: str, code: int = 0, **environment: str) -> set[str]:
    """Returns the modules that the command imports, as Python reports them on stderr."""
    reporting = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", **environment}
    done = subprocess.run([*COMMAND, *words], env=reporting, capture_output=True, timeout=60)
    report = done.stderr.decode()
    assert done.returncode == code, report
    return {line.rpartition("|")[2].strip() for line in report.splitlines() if line.startswith("import time:")}


def test_help_loads_nothing_heavy() -> None:
    heavy = {*OTHERS, "sqlalchemy", "tiktoken", "psycopg", "nats", "pydantic_settings"}
    assert loaded("--help") & heavy == set()


@pytest.mark.parametrize("command", ["chat", "up", "memories", "erase"])
def test_help_of_a_command_loads_nothing_heavy(command: str) -> None:
    assert loaded(command, "--help") & {*OTHERS, "sqlalchemy", "tiktoken"} <= {"rich.progress"}


def test_mcp_refuses_a_wrong_user_before_its_library_is_loaded(tmp_path: Path) -> None:
    said = loaded("mcp", "stdio", "--user", "", code=1, TURNLOG_HOME=str(tmp_path))
    assert said & {"mcp", "fastapi"} == set()


async def test_a_reading_command_loads_no_projector_while_rows_are_up_to_date(settings: Settings) -> None:
    async with opened(settings) as runtime, projecting(runtime):
        await open_thread(runtime, settings.tenant, "t", "ann")
        await runtime.wait_until_projected()
    servers = {"NATS_URL": runtime.nats_url, "DATABASE_URL": runtime.database_url, "TURNLOG_HOME": str(settings.home)}
    for words in part(READING):
        assert loaded(*words, **servers) & (PROJECTING | OTHERS) == set(), words


async def test_a_reading_command_projects_events_that_no_process_has_projected(
    settings: Settings, turnlog: Cli
) -> None:
    async with opened(settings) as runtime:
        await open_thread(runtime, settings.tenant, "t", "ann", "Dogs")
    [thread] = (await turnlog("threads", "--json")).document
    assert thread["label"] == "Dogs"
