"""The command `turnlog` in a process of its own, forked from one that has loaded the libraries.

Loading them takes nine tenths of a command's time. The modules of the command line are not among them: every process
loads those anew. Processes that tests signal or kill, and all that bash starts, begin as a new Python instead.
"""

import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock

LIBRARIES = [
    "pytest",  # a fork runs its parent's main module again, which is pytest's
    "rich.progress",
    "typer",
    "turnlog.agent.memory.deciding.service",
    "turnlog.agent.models.factory",
    "turnlog.agent.threads.receipts",
    "turnlog.agent.recall.search",
    "turnlog.agent.sessions.memory",
    "turnlog.consumers.roles",
    "turnlog.consumers.runtime",
]
PATIENCE_S = 60.0
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(LIBRARIES)
# Starting a process also collects those that ended, and that must not happen in two threads at once.
_one_at_a_time = Lock()


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


def run_command(*words: str, environment: dict[str, str], stdin: str = os.devnull, folder: Path | None = None) -> Ended:
    """Runs `turnlog` with these words and waits for its end. stdin: path of a file or a terminal."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place) / "out", Path(place) / "err"
        files = (stdin, str(out), str(err))
        process = _server.Process(target=_run_main, args=(words, environment, files, folder or Path.cwd()))
        with _one_at_a_time:
            process.start()
        in_time = wait([process.sentinel], PATIENCE_S)
        with _one_at_a_time:
            if not in_time:
                process.kill()
            process.join()
        assert in_time, f"turnlog {' '.join(words)} did not end: {err.read_text('utf-8')}"
        return Ended(process.exitcode or 0, out.read_text("utf-8"), err.read_text("utf-8"))


def _run_main(words: tuple[str, ...], environment: dict[str, str], files: tuple[str, str, str], folder: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for at, (path, mode) in enumerate(zip(files, ("r", "w", "w"), strict=True)):
        with open(path, mode) as file:  # noqa: PTH123
            os.dup2(file.fileno(), at)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["turnlog", *words]
    from turnlog.consumers.cli import main

    main()
