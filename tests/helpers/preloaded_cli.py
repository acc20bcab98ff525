"""Runs the command `turnlog` or a Python program in a process that is forked from one with loaded libraries.

Loading them takes nine tenths of a command's time. Commands that bash starts run in a new Python process instead.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock

import pytest

PATIENCE_S = 240.0  # for a command on a busy machine; `up --detach` alone may take 90 s
Files = tuple[str, str, str]  # the paths of stdin, stdout and stderr
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["helpers.cli_libraries"])
# Starting a process also collects ended processes, which two threads must not do at once.
_one_at_a_time = Lock()


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


def run_command(*words: str, environment: dict[str, str], stdin: str = os.devnull, folder: Path | None = None) -> Ended:
    """Runs `turnlog` with these words and waits for its end. stdin: the path of a file or a terminal."""
    return _run(_turnlog, ("turnlog", *words), environment, stdin, folder or Path.cwd())


def run_program(*words: str, environment: dict[str, str], folder: Path) -> Ended:
    """Runs the Python program in `folder` that the first word names, with the other words as its arguments."""
    return _run(_program, words, environment, os.devnull, folder)


def begin_command(*words: str, environment: dict[str, str], output: Path) -> BaseProcess:
    """Starts `turnlog` with these words, for tests that kill or freeze it. output: the file for its output, in its
    folder."""
    output.touch()
    return _begin(_turnlog, ("turnlog", *words), environment, (os.devnull, str(output), str(output)), output.parent)


def begin_program(*words: str, environment: dict[str, str], stdin: str, output: Path) -> BaseProcess:
    """Starts the Python program that the first word names. stdin: a named pipe; the program begins when the pipe is
    opened for writing. output: the file for its output, in its folder."""
    output.touch()
    return _begin(_program, words, environment, (stdin, str(output), str(output)), output.parent)


def _run(
    main: Callable[[], None], words: tuple[str, ...], environment: dict[str, str], stdin: str, folder: Path
) -> Ended:
    with tempfile.TemporaryDirectory() as output_folder:
        out, err = Path(output_folder) / "out", Path(output_folder) / "err"
        process = _begin(main, words, environment, (stdin, str(out), str(err)), folder)
        in_time = wait([process.sentinel], PATIENCE_S)
        with _one_at_a_time:
            if not in_time:
                process.kill()
            process.join()
        assert in_time, f"{' '.join(words)} did not end: {err.read_text('utf-8')}"
        return Ended(process.exitcode or 0, out.read_text("utf-8"), err.read_text("utf-8"))


def _begin(
    main: Callable[[], None], words: tuple[str, ...], environment: dict[str, str], files: Files, folder: Path
) -> BaseProcess:
    process = _server.Process(target=_run_main, args=(main, words, environment, files, folder))
    with _one_at_a_time:
        _start_server()
        process.start()
    return process


def _start_server() -> None:
    """Starts the server process; later calls do nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)  # the folder of `helpers`
        patch.setenv("OPENBLAS_NUM_THREADS", "1")  # as the command sets it; a fork can no longer change it
        forkserver.ensure_running()


def _turnlog() -> None:
    from turnlog.consumers.cli import main

    main()


def _program() -> None:
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _run_main(
    main: Callable[[], None],
    words: tuple[str, ...],
    environment: dict[str, str],
    files: Files,
    folder: Path,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for at, (path, mode) in enumerate(zip(files, ("r", "a", "a"), strict=True)):
        with open(path, mode) as file:  # noqa: PTH123
            os.dup2(file.fileno(), at)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = list(words)
    main()
