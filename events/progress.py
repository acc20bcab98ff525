"""Defines the type of functions to which long-running work reports its progress."""

from collections.abc import Callable

OnProgress = Callable[[float, float | None], None]
"""Called with (done, total) in the units of the work; total is None while it is unknown."""


def no_progress(done: float, total: float | None) -> None:
    """Ignores the progress."""
