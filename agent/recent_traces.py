"""Keeps the latest traces of this process for administrators: an agent's request, its model and tool calls, and its
search for memories. Their number is bounded, and they are only in memory; TURNLOG_TRACES_URL sends all spans to a
collector.

A span contains the code of an error but never its text, which may contain words of people.
"""

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from turnlog.events.errors import TurnlogError
from turnlog.events.personal_data_caches import caches_words

KEPT, MAX_SPANS = 500, 100
SLOW_MS = 5_000
Tag = str | int | float


@dataclass(slots=True)
class TraceSpan:
    """A part of a trace. Times are in ms, start_time since 1970. logs: pairs (time, message)."""

    span_id: str
    parent_id: str | None
    name: str
    start_time: float
    duration: float = 0.0
    status: Literal["ok", "error"] = "ok"
    tags: dict[str, Tag] = field(default_factory=dict)
    logs: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    """The spans of one request. The first span is that of the request; the others are parts of it, in the order in
    which they began."""

    tenant: str
    trace_id: str
    spans: list[TraceSpan] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(span.status == "error" for span in self.spans)

    @contextlib.contextmanager
    def span(self, name: str, tags: Mapping[str, Tag]) -> Iterator[TraceSpan]:
        parent = self.spans[0].span_id if self.spans else None
        made = TraceSpan(secrets.token_hex(8), parent, name, time.time() * 1000, tags=dict(tags))
        if len(self.spans) < MAX_SPANS:
            self.spans.append(made)
        started = time.perf_counter()
        try:
            yield made
        except Exception as error:
            made.status = "error"
            code = error.code if isinstance(error, TurnlogError) else type(error).__name__
            made.logs.append((time.time() * 1000, code))
            raise
        finally:
            made.duration = (time.perf_counter() - started) * 1000


_kept: deque[Trace] = deque(maxlen=KEPT)
caches_words(_kept.clear)  # traces contain ids of conversations, which people choose
_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextlib.contextmanager
def traced_request(tenant: str, name: str, traceparent: str | None, tags: Mapping[str, Tag]) -> Iterator[None]:
    """Records a trace while the block runs, under the id of the caller's trace if there is one."""
    parts = (traceparent or "").split("-")
    trace = Trace(tenant, parts[1] if len(parts) == 4 else secrets.token_hex(16))
    token = _current.set(trace)
    try:
        with trace.span(name, tags):
            yield
    finally:
        _current.reset(token)
        _kept.append(trace)


@contextlib.contextmanager
def traced(name: str, tags: Mapping[str, Tag]) -> Iterator[dict[str, Tag]]:
    """Records a part of the current trace, if any; yields its tags, to which the block may add."""
    trace = _current.get()
    if trace is None:
        yield {}
        return
    with trace.span(name, tags) as made:
        yield made.tags


def latest(tenant: str, limit: int, only_failed: bool = False) -> list[Trace]:
    """Returns at most `limit` traces of a tenant, newest first."""
    matching = (trace for trace in reversed(_kept) if trace.tenant == tenant and (trace.failed or not only_failed))
    return [trace for trace, _ in zip(matching, range(limit), strict=False)]
