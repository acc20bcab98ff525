"""One round of work on a thread: what it made, what it cost, and what went wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from turnlog.agent.models.errors import BreakerOpen, ModelError, ModelRefused
from turnlog.agent.models.protocol import Usage
from turnlog.consumers.inbox import Later
from turnlog.consumers.reactors.derive import Deriver
from turnlog.consumers.reactors.facts import Thread
from turnlog.consumers.reactors.plan import Plan
from turnlog.consumers.reactors.results import Purpose, failure_metered, usage_metered
from turnlog.events.contracts import Event

MODEL_DOWN_S = 30.0
MODEL_REFUSES_S = 300.0


class Round:
    """events: what to append, in order. problem: why some of it has to be tried again, None when all succeeded."""

    def __init__(self, thread: Thread, due: Plan, deriver: Deriver) -> None:
        self.thread, self.due, self.deriver = thread, due, deriver
        self.events: list[Event] = []
        self.problem: Later | None = None

    @contextmanager
    def step(self, purpose: Purpose, model: Usage) -> Iterator[None]:
        """A part that may fail by itself: the others still count. Its answered calls are metered either way."""
        before = len(self.deriver.calls)
        try:
            yield
        except Later as later:
            self.problem = later
        except ModelError as error:
            self.problem = _later(error)
            if not isinstance(error, BreakerOpen):  # then no call was made
                self.events.append(failure_metered(self.thread, model, error, purpose))
        finally:
            self.events += [usage_metered(self.thread, call, purpose) for call in self.deriver.calls[before:]]


def _later(error: ModelError) -> Later:
    seconds = MODEL_REFUSES_S if isinstance(error, ModelRefused) else error.retry_after_s or MODEL_DOWN_S
    return Later(seconds, str(error))
