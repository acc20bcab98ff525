"""The examples of the documentation run on real servers and print the documented output."""

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from helpers.markdown_examples import ROOT, Step, blocks, files, shape, steps
from helpers.openai_server import OpenAIServer
from helpers.preloaded_cli import Ended, run_command, run_program
from helpers.prepared_home import copy_database
from helpers.servers import eventually, processes_left_in

from turnlog.consumers.cli.reference import text
from turnlog.events.contracts import TurnRecorded
from turnlog.events.log import Log
from turnlog.events.stored import recorded
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import thread_messages

pytestmark = pytest.mark.slow

# The pages of a row share a data folder and one `turnlog up`, because its start takes most of a page's time.
WALKS: tuple[Any, ...] = (
    ("README.md",),
    ("docs/mcp.md", "docs/access.md", "docs/server.md", "docs/operation.md"),
    pytest.param(("docs/langgraph.md",), marks=pytest.mark.nightly),  # 40 seconds
    ("docs/long-term-memory.md",),
)
READS = ("threads", "context", "recall", "memories", "lag", "tail", "verify", "jobs", "doctor")
PATIENCE_S = 180.0
PRELOADED = {"turnlog": run_command, "python": run_program}
NOTHING = Ended(0, "", "")


def program(label: str) -> str:
    (block,) = blocks("docs/subscribe.md", "python", label)
    assert "turnlog." not in block.text.replace('"turnlog.', ""), "the page promises not to import turnlog"
    return block.text


@asynccontextmanager
async def running(source: str, nats_url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {"PATH": os.environ["PATH"], "NATS_URL": nats_url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def publish(nats_url: str) -> dict[str, Any]:
    async with running(program("publish"), nats_url) as process:
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    answer: dict[str, Any] = json.loads(stdout)
    return answer


async def test_turn_published_without_turnlog_becomes_a_row(
    log: Log, nats_url: str, db: Connection, running_projectors: Runner, settled: Any
) -> None:
    answer = await publish(nats_url)
    event = recorded(await log.stored(answer["seq"])).event
    assert isinstance(event.data, TurnRecorded) and (event.thread, event.user) == ("t42", "ann")
    await settled("messages")
    assert [message.content for message in await thread_messages(db, "default", "t42")] == ["Where do we meet?"]


async def test_turn_published_by_the_nats_command_is_stored_once(log: Log, nats_url: str) -> None:
    (block,) = blocks("docs/subscribe.md", "sh", "publish")
    command, verb, subject, option, header, body = shlex.split(block.text)
    assert (command, verb, option) == ("nats", "req", "-H")
    name, _, value = header.partition(":")
    async with await nats.connect(nats_url) as client:
        answers = [await client.request(subject, body.encode(), headers={name: value}) for _ in range(2)]
    first, again = (json.loads(answer.data) for answer in answers)
    assert again == {**first, "duplicate": True}
    assert str(recorded(await log.stored(first["seq"])).event.id) == value


async def test_a_subscriber_without_turnlog_counts_from_the_start_and_continues_at_its_position(
    log: Log, nats_url: str
) -> None:
    await publish(nats_url)
    async with running(program("subscribe"), nats_url) as process:
        assert await printed(process) == {"ann": 4}
        await publish(nats_url)
        assert await printed(process) == {"ann": 8}
        await eventually(lambda: acknowledged(log))
    await publish(nats_url)
    async with running(program("subscribe"), nats_url) as process:
        assert await printed(process) == {"ann": 4}, "only what came since"


async def printed(process: asyncio.subprocess.Process) -> Any:
    """Returns the next line of JSON that a program prints; shows its errors if it has ended."""
    assert process.stdout is not None and process.stderr is not None
    if line := await process.stdout.readline():
        return json.loads(line)
    pytest.fail((await process.stderr.read()).decode())


async def acknowledged(log: Log) -> bool:
    return (await log.nc.jetstream().consumer_info("TURNLOG", "token-counter")).num_ack_pending == 0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yields a data folder whose servers are always stopped at the end."""
    (tmp_path / "agent").symlink_to(ROOT / "agent")
    yield tmp_path / "home"
    turnlog("turnlog down", tmp_path / "home")
    assert processes_left_in(tmp_path / "home") == []


def turnlog(line: str, home: Path, port: int = 0) -> Ended:
    """Runs a command line of the page as a reader would, with this Python's turnlog and without our settings. bash runs
    lines with more than one command or program, and lines that redirect output.
    """
    kept = {"PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR"}
    environment = {name: value for name, value in os.environ.items() if name in kept}
    environment |= {"TURNLOG_HOME": str(home), "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    environment |= {"TURNLOG_API_PORT": str(port)}
    command, rest = re.fullmatch(r"([^|<>$;&]*)(.*)", line, re.DOTALL).groups()
    if not set(rest) & set("<$;&") and (run := PRELOADED.get(command.split()[0])):
        done = run(*shlex.split(command)[1:], environment=environment, folder=home.parent)
        return in_bash(f"cat {rest}", home.parent, environment, done) if rest else done
    python = shlex.quote(sys.executable)
    functions = (
        f'python() {{ {python} "$@"; }}\nturnlog() {{ python -m turnlog.consumers.cli "$@"; }}\nset -o pipefail\n'
    )
    return in_bash(functions + line, home.parent, environment)


def in_bash(line: str, folder: Path, environment: dict[str, str], before: Ended = NOTHING) -> Ended:
    """Runs a line in bash. before: the command whose output the first command reads, as in a pipe."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, input=before.out, capture_output=True, text=True, timeout=240
    )
    return Ended(before.code or done.returncode, done.stdout, before.err + done.stderr)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pages", WALKS, ids=" ".join)
async def test_commands_of_the_pages_print_what_they_show(
    pages: tuple[str, ...], home: Path, prepared_home: Path
) -> None:
    """Numbers may differ. Results of reactors come a little later, so reading commands are repeated until they are
    there. Python blocks that are labelled with a file name are written to those files. The README begins without a data
    folder.
    """
    if pages != ("README.md",):
        copy_database(prepared_home, home)
    port, is_up = free_port(), False  # the pages name the default port
    for page in pages:
        for name, source in files(page).items():
            (home.parent / name).write_text(source, "utf-8")
        for step in [step for block in blocks(page, "console", "runnable") for step in steps(block.text)]:
            starts, ends = step.command.startswith("turnlog up"), step.command == "turnlog down"
            if (starts and is_up) or (ends and page != pages[-1]):
                continue
            is_up = is_up or starts
            await show(replace(step, command=step.command.replace("localhost:8484", f"localhost:{port}")), home, port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


async def show(step: Step, home: Path, port: int) -> None:
    done = await asyncio.to_thread(turnlog, step.command, home, port)
    deadline = time.monotonic() + PATIENCE_S
    while shape(done.out) != shape(step.output) and is_a_look(step) and time.monotonic() < deadline:
        done = await asyncio.to_thread(turnlog, step.command, home, port)
    assert done.code == 0 or "|" in step.command, done.err
    assert shape(done.out) == shape(step.output), f"{step.command}\n{done.out}{done.err}"


async def test_programs_of_the_python_page_run_and_print_what_it_shows(home: Path, prepared_home: Path) -> None:
    """A line with … matches any number of lines, because results of reactors come at any time."""
    copy_database(prepared_home, home)
    page = "docs/python.md"
    with OpenAIServer() as model:
        for name, source in files(page).items():
            (home.parent / name).write_text(source.replace('os.environ["BASE_URL"]', repr(model.url)), "utf-8")
        for step in [step for block in blocks(page, "console", "program") for step in steps(block.text)]:
            done = await asyncio.to_thread(turnlog, step.command, home)
            assert done.code == 0, done.err
            shown = ".*".join(re.escape(part.strip()) for part in step.output.split("…"))
            assert re.fullmatch(shown, done.out.strip(), re.DOTALL), done.out


def is_a_look(step: Step) -> bool:
    """Returns whether the command only reads, so that it may be repeated."""
    return step.command.split()[1] in READS


def test_reference_of_commands_is_current() -> None:
    assert (ROOT / "docs/cli.md").read_text("utf-8") == text(), (
        "run python -m turnlog.consumers.cli.reference > docs/cli.md"
    )


def test_links_between_pages_lead_to_files() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_and_functions_that_the_readme_names_exist() -> None:
    """Each row of the walk names an existing file and a function in it."""
    rows = re.findall(r"^\| \*\*(\w+)\*\* \| `([\w.]+)\(\)` \| `([\w/.]+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert [row[0] for row in rows] == ["publish", "log", "projector", "rows", "context", "answer", "record"]
    for _, function, file in rows:
        assert re.search(rf"def {function.rsplit('.', 1)[-1]}\(", (ROOT / file).read_text("utf-8")), (
            f"{function} in {file}"
        )
