"""A pipe or standard input as a file, for a command that reads its file more than once, as imports do."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

STDIN = Path("-")


@contextmanager
def seekable(path: Path) -> Iterator[Path]:
    """The file itself; of a pipe, or of '-' for standard input, a copy named `stdin` that lasts as long as the block.

    Waits for the end of what is piped, so it comes before an event loop runs: Ctrl-C and SIGTERM end the waiting.
    Raises OSError.
    """
    if path != STDIN and not _is_pipe(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="turnlog-") as folder:
        copy = Path(folder) / "stdin"
        with _piped(path) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
        yield copy


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except OSError:  # whoever opens it says why it cannot be read
        return False


def _piped(path: Path) -> IO[bytes]:
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb") if path == STDIN else path.open("rb")
