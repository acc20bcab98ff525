"""Errors of embedded servers. Their messages name the cause, the fix and the last lines of the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnlog.events.errors import TurnlogError


class ServerStartFailed(TurnlogError):
    """An embedded server could not be started."""

    code = "server-start-failed"


class ServerStopFailed(TurnlogError):
    """An embedded server could not be stopped."""

    code = "server-stop-failed"


@contextmanager
def folder_errors(home: Path) -> Iterator[None]:
    """Turns an OSError about the data folder (not writable, disk full, a file in its place) into a TurnlogError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        raise ServerStartFailed(
            f"cannot use the data folder {home}: {reason}{where}. "
            "Make it writable, free some space, or set TURNLOG_HOME to another folder."
        ) from error
