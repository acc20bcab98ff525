"""What an administrator watches, in the words of seed E (11.1, 12): metrics, traces, circuit breakers."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel

from turnlog.agent.operations import breakers, gauges
from turnlog.agent.operations.all_processes import Reply, ask_processes
from turnlog.agent.operations.breakers import Circuit
from turnlog.agent.recent_traces import SLOW_MS, Trace
from turnlog.consumers.api.pages import Limit
from turnlog.consumers.api.principal import Operator, ServerOperator, WriteId

router = APIRouter(prefix="/admin/ai-agent", tags=["seed E"])


class SpanLog(BaseModel):
    timestamp: float
    message: str


class SpanRecord(BaseModel):
    """Times in ms since 1970, duration in ms."""

    traceId: str
    spanId: str
    parentSpanId: str | None
    name: str
    startTime: float
    endTime: float
    duration: float
    status: Literal["ok", "error"]
    tags: dict[str, str]
    logs: list[SpanLog]


class TraceRecord(BaseModel):
    """One request and its spans, the request's own first. slow: over 5 s. role, process: who answered it."""

    role: str
    process: str
    traceId: str
    name: str
    startTime: float
    duration: float
    status: Literal["ok", "error"]
    slow: bool
    spans: list[SpanRecord]


@router.get("/metrics")
async def metrics_summary(caller: ServerOperator) -> dict[str, Any]:
    """Of all processes since each began; /admin/ai-agent/metrics/prometheus has all of them, by role."""
    return await gauges.whole_summary(caller.system)


@router.get("/traces/recent")
async def recent_traces(caller: Operator, limit: Limit = 50) -> list[TraceRecord]:
    """The tenant's latest requests, whichever process answered them, newest first."""
    return await _traces(caller, limit)


@router.get("/traces/errors")
async def failed_traces(caller: Operator, limit: Limit = 50) -> list[TraceRecord]:
    """As /traces/recent, only those with an error."""
    return await _traces(caller, limit, only_failed=True)


@router.get("/circuit-breakers")
async def list_breakers(caller: Operator) -> list[Circuit]:
    """The breakers of all processes, which all tenants share."""
    return await breakers.list_breakers(caller.system)


@router.delete("/circuit-breakers/{service}")
async def reset_breaker(service: Annotated[str, Path(max_length=100)], caller: ServerOperator, _: WriteId) -> Circuit:
    """Closes the service's breakers in every process."""
    return await breakers.reset_breaker(caller.system, service)


async def _traces(caller: Operator, limit: int, only_failed: bool = False) -> list[TraceRecord]:
    asked = {"tenant": caller.tenant, "limit": limit, "only_failed": only_failed}
    replies = await ask_processes(caller.system, "traces", **asked)
    found = [_trace(trace, reply) for reply in replies for trace in reply.traces]
    return sorted(found, key=lambda one: -one.startTime)[:limit]


def _trace(found: Trace, reply: Reply) -> TraceRecord:
    root, spans = found.spans[0], list[SpanRecord]()
    for one in found.spans:
        spans.append(
            SpanRecord(
                traceId=found.trace_id,
                spanId=one.span_id,
                parentSpanId=one.parent_id,
                name=one.name,
                startTime=one.start_time,
                endTime=one.start_time + one.duration,
                duration=one.duration,
                status=one.status,
                tags={name: str(value) for name, value in one.tags.items()},
                logs=[SpanLog(timestamp=at, message=message) for at, message in one.logs],
            )
        )
    return TraceRecord(
        role=reply.role,
        process=reply.process,
        traceId=found.trace_id,
        name=root.name,
        startTime=root.start_time,
        duration=root.duration,
        status="error" if found.failed else "ok",
        slow=root.duration > SLOW_MS,
        spans=spans,
    )
