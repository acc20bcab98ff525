"""Defines the errors of work that cannot be done now."""

import contextlib
from collections.abc import Iterator

from turnlog.events.errors import TurnlogError


class RetryLater(Exception):
    """The work must be delivered again after `seconds`."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.seconds = seconds


class NotNow(TurnlogError):
    """The hourly budget is spent, or another worker does the work."""

    code = "not-now"


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Raises NotNow instead of RetryLater while the block runs, for a caller whose work is not redelivered."""
    try:
        yield
    except RetryLater as later:
        raise NotNow(f"{later}; what is done is stored: run it again in {max(1.0, later.seconds):.0f} s") from later
