"""A fixture that runs the command `turnlog` on the servers of a test and returns its output."""

import asyncio
import contextlib
import json
import os
import pty
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from helpers import many_commands
from helpers.preloaded_cli import run_command, run_program


@dataclass(frozen=True)
class CliResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        assert self.code == 0, self.out + self.err
        return json.loads(self.out)

    @property
    def error(self) -> str:
        code: str = json.loads(self.out)["error"]["code"]
        assert self.code == 1
        return code


Cli = Callable[..., Awaitable[CliResult]]
ManyCommands = Callable[[Sequence[Sequence[str]]], Awaitable[list[CliResult]]]


def environment_of(nats_url: str, database_url: str, home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    environment = kept | {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(home)}
    environment["COLUMNS"] = "200"
    return environment


@pytest.fixture
def turnlog(nats_url: str, database_url: str, tmp_path: Path) -> Cli:
    return commands(environment_of(nats_url, database_url, tmp_path))


def commands(environment: Mapping[str, str]) -> Cli:
    async def run(*words: str, typed: str | None = None) -> CliResult:
        """Runs a command. typed: a person's input at a terminal; None means that there is no terminal."""
        with nullcontext(os.devnull) if typed is None else terminal(typed) as stdin:
            done = await asyncio.to_thread(run_command, *words, environment=environment, stdin=stdin)
        assert "Traceback" not in done.err
        return CliResult(done.code, done.out, done.err)

    return run


@pytest.fixture
def turnlog_in_one_process(nats_url: str, database_url: str, tmp_path: Path) -> ManyCommands:
    """Returns a function that runs several commands in one process, which is faster than one process for each."""
    environment = environment_of(nats_url, database_url, tmp_path)

    async def run(calls: Sequence[Sequence[str]]) -> list[CliResult]:
        words = (many_commands.__file__, json.dumps(calls))
        done = await asyncio.to_thread(run_program, *words, environment=environment, folder=tmp_path)
        assert done.code == 0 and "Traceback" not in done.err, done.err
        return [CliResult(code, out, "") for code, out in json.loads(done.out)]

    return run


@contextmanager
def terminal(typed: str) -> Iterator[str]:
    """Yields the path of a terminal at which a person has already typed. Its output is read, because a full buffer of a
    few kilobytes would block the command."""
    keyboard, screen = pty.openpty()
    reader = Thread(target=read_to_the_end, args=(keyboard,), daemon=True)
    try:
        os.write(keyboard, typed.encode())
        reader.start()
        yield os.ttyname(screen)
    finally:
        os.close(screen)
        reader.join(60)
        os.close(keyboard)


def read_to_the_end(keyboard: int) -> None:
    """Reads until no process has the terminal open for writing."""
    with contextlib.suppress(OSError):
        while os.read(keyboard, 4096):
            pass
