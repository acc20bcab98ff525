"""Sends spans to an OpenTelemetry collector (extra `otel`). The SDK is loaded only if TURNLOG_TRACES_URL is set."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from turnlog.agent.settings import InvalidSetting, Settings
from turnlog.events import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

TIMEOUT_S = 5
QUERY = "url.query"


@contextlib.asynccontextmanager
async def exported(settings: Settings) -> AsyncIterator[None]:
    """Exports the spans of this process while the block runs. Raises InvalidSetting if the extra is not installed."""
    if settings.traces_url is None:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidSetting("TURNLOG_TRACES_URL needs the extra: pip install 'turnlog[otel]'") from None
    exporter = OTLPSpanExporter(settings.traces_url, timeout=TIMEOUT_S)
    provider = provider_of(BatchSpanProcessor(exporter), settings.traces_ratio)
    try:
        with tracing.use(provider):
            yield
    finally:
        await asyncio.to_thread(provider.shutdown)


def provider_of(processor: "SpanProcessor", ratio: float = 1.0) -> "TracerProvider":
    """Returns the provider of traces, which removes the queries of URLs from spans, because they contain what people
    ask. ratio: the share of traces to record that begin here; for other traces the caller has decided."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class WithoutQuery(SpanProcessor):
        def on_start(self, span: Span, parent_context: object = None) -> None:
            if QUERY in (span.attributes or {}):
                span.set_attribute(QUERY, "")

    resource = Resource.create({SERVICE_NAME: "turnlog"})
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(ratio), resource=resource)
    provider.add_span_processor(WithoutQuery())
    provider.add_span_processor(processor)
    return provider
