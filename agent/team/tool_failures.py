"""Defines the errors of tools, whose messages the model reads, and their categories."""

from collections.abc import Mapping

import httpx2

from turnlog.agent.answering.fallback import Category, category_of
from turnlog.events.errors import TurnlogError


class Mistake(Exception):
    """A call that cannot be answered as it is; the message tells the model what to do instead. The call is not
    retried.
    """


class Unavailable(Exception):
    """A service failed to do what a tool needs; the message tells the model so. The call is retried like any failure.

    may_be_done: whether the service may have done it nevertheless, for example if its response was lost.
    """

    def __init__(self, message: str, category: Category = "network", *, may_be_done: bool = True) -> None:
        super().__init__(message)
        self.category: Category = category
        self.may_be_done = may_be_done


def category_of_failure(error: Exception) -> Category:
    """Returns the category of a tool's failure, from the categories of failed answers."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, TurnlogError):
        return category_of(error.code)
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "timeout"
    if status in _CATEGORY_OF_STATUS:
        return _CATEGORY_OF_STATUS[status]
    return "network" if status is not None or isinstance(error, OSError | httpx2.TransportError) else "unknown"


_CATEGORY_OF_STATUS: Mapping[int | None, Category] = {402: "quota", 429: "rate_limit", 503: "network", 504: "timeout"}
