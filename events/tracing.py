"""Traces work across the log: an event carries the W3C trace context of the span that published it.

Tracing is off until `use` receives a provider. Until then OpenTelemetry is not imported and no spans are made, but the
trace context of an event is passed on to the events that are derived from it.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

HEADER = "traceparent"
MAX_LINKS = 128
Attributes = Mapping[str, str | int | float]
_VALID = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_carried: ContextVar[str | None] = ContextVar("traceparent", default=None)
_provider: "TracerProvider | None" = None
_tracer: "Tracer | None" = None


@contextlib.contextmanager
def use(provider: "TracerProvider") -> Iterator[None]:
    """Uses the provider for the spans of this process while the block runs."""
    global _provider, _tracer
    _provider, _tracer = provider, provider.get_tracer("turnlog")
    try:
        yield
    finally:
        _provider = _tracer = None


def provider() -> "TracerProvider | None":
    return _provider


def valid(said: object) -> str | None:
    """Returns a traceparent if it follows W3C's grammar, else None, because anyone may have published it."""
    return said if isinstance(said, str) and _VALID.fullmatch(said) else None


def traceparent() -> str | None:
    """Returns the traceparent of the current span, or of the current event if there is no span."""
    if _tracer is not None:
        from opentelemetry.trace import get_current_span

        at = get_current_span().get_span_context()
        if at.is_valid:
            return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"
    return _carried.get()


@contextlib.contextmanager
def span(
    name: str,
    attributes: Attributes | None = None,
    parent: str | None = None,
    current: bool = True,
    is_client: bool = False,
) -> Iterator["Span | None"]:
    """Opens a span while the block runs; yields None while tracing is off. Of an error only the code is recorded,
    because its text may contain people's words.

    parent: a traceparent, used if no span is current; it is validated. current: must be False in generators, whose
    consumer runs in another context. is_client: True if another server does the work.
    """
    parent = valid(parent)
    if _tracer is None:
        with _carrying(parent) if current and parent else contextlib.nullcontext():
            yield None
        return
    from opentelemetry.trace import SpanKind, set_span_in_context, use_span

    remote = None
    if parent is not None and traceparent() is None:
        from opentelemetry.trace import NonRecordingSpan

        remote = set_span_in_context(NonRecordingSpan(_context(parent)))
    kind = SpanKind.CLIENT if is_client else SpanKind.INTERNAL
    made = _tracer.start_span(name, remote, kind, attributes=attributes)
    shown = use_span(made, record_exception=False, set_status_on_exception=False)
    try:
        with shown if current else contextlib.nullcontext():
            yield made
    except Exception as error:
        failed(made, error)
        raise
    finally:
        made.end()


def failed(made: "Span", error: Exception | str) -> None:
    """Marks a span as failed. error: an exception, or the kind of error."""
    from opentelemetry.trace import StatusCode

    kind = error if isinstance(error, str) else getattr(error, "code", None) or type(error).__name__
    made.set_attribute("error.type", kind)
    made.set_status(StatusCode.ERROR)


def linked(name: str, traceparents: Iterable[str | None]) -> AbstractContextManager[object]:
    """Returns a context manager for a span in a new trace that links to the spans of these traceparents."""
    if _tracer is None:
        return contextlib.nullcontext()
    from opentelemetry.trace import Link

    parents = dict.fromkeys(parent for parent in map(valid, traceparents) if parent)
    links = [Link(_context(parent)) for parent in list(parents)[:MAX_LINKS]]
    if not links:
        return contextlib.nullcontext()
    from opentelemetry.context import Context

    return _tracer.start_as_current_span(
        name, Context(), links=links, record_exception=False, set_status_on_exception=False
    )


def _context(traceparent: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace, span, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


@contextlib.contextmanager
def _carrying(parent: str) -> Iterator[None]:
    token = _carried.set(parent)
    try:
        yield
    finally:
        _carried.reset(token)
