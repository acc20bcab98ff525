"""Forks pytest-xdist's workers from one process that has loaded the tests and their libraries.

Loading takes 18 s of CPU time, and 50 s if nothing is compiled yet; otherwise each worker would repeat it.
"""

import json
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import execnet.gateway_io
import pytest
from execnet.gateway_base import Popen2IO
from helpers import nightly

_server = multiprocessing.get_context("forkserver")


def fork_workers(config: pytest.Config, patch: pytest.MonkeyPatch) -> None:
    """Makes execnet fork its processes from a process that has loaded the tests that this run selects."""
    options = ["--nightly"] if nightly.FULL else []
    patch.setenv("TESTS_TO_LOAD", json.dumps([*options, *config.args]))
    patch.setattr(execnet.gateway_io, "Popen2IOMaster", ForkedIO)
    _server.set_forkserver_preload(["tests.helpers.loaded_tests"])
    forkserver.ensure_running()


class ForkedIO(Popen2IO):
    """Starts a Python process and communicates with it, in place of execnet's class of the same purpose."""

    def __init__(self, arguments: list[str], execmodel: Any) -> None:
        stdin, to_worker = os.pipe()
        from_worker, stdout = os.pipe()
        with Connection(stdin, writable=False) as reader, Connection(stdout, readable=False) as writer:
            self.process = _server.Process(target=_execute, args=(reader, writer, arguments[-1]))
            self.process.start()
        super().__init__(os.fdopen(to_worker, "wb"), os.fdopen(from_worker, "rb"), execmodel)

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def _execute(stdin: Connection, stdout: Connection, program: str) -> None:
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    stdin.close()
    stdout.close()
    sys.stdin = os.fdopen(0, closefd=False)
    exec(program, {"__name__": "__main__"})
