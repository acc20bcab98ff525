"""A question over HTTP has metrics and traces from the request to the projected rows of its answer."""

from collections.abc import Iterator

import pytest
from helpers.api import Serve
from helpers.servers import eventually
from helpers.stage import MemoryServer
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from turnlog.agent.answering.asking import ask
from turnlog.consumers.traces import provider_of
from turnlog.events import tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
ROUTE = "/api/threads/{thread}/answers"
SECRET = "what-nobody-may-read"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    with tracing.use(provider_of(SimpleSpanProcessor(exporter))):
        yield exporter


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Returns the samples by name and labels, without labels that name the process."""
    return {
        (
            sample.name,
            frozenset((name, value) for name, value in sample.labels.items() if name not in ("role", "process")),
        ): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def named(finished: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [span for span in finished if span.name == name]


def trace_of(span: ReadableSpan) -> str:
    return f"{span.get_span_context().trace_id:032x}"


async def test_a_question_is_one_trace_that_projectors_link_to(
    serve: Serve, model: MemoryServer, spans: InMemorySpanExporter
) -> None:
    async with serve("agent", api_base_url=model.url, model="m") as api, api.client() as ann:
        asked = await ann.post(
            "/api/threads/traced/answers", params={"x": SECRET}, json={"message": SECRET}, headers=PARENT
        )
        assert asked.status_code == 201, asked.text
        events = [recorded.event async for recorded in api.runtime.log.read_thread("default", "traced")]
        await api.runtime.wait_until_projected()

        async def answer_projected() -> bool:
            sent = {event.traceparent for event in events}
            return sent <= linked_to(spans.get_finished_spans())

        await eventually(answer_projected)
        finished = spans.get_finished_spans()
    assert {str(event.traceparent).split("-")[1] for event in events} == {TRACE}, (
        "turn, request, answer, receipt and usage"
    )
    for name in (f"POST {ROUTE}", "process agent", "invoke_agent orchestrator", "chat m"):
        assert {trace_of(span) for span in named(finished, name)} == {TRACE}, name
    assert {trace_of(span) for span in named(finished, "project")}.isdisjoint({TRACE})
    assert named(finished, "chat m")[0].attributes["gen_ai.usage.output_tokens"] > 0
    assert SECRET not in "".join(span.to_json() for span in finished)


def linked_to(finished: tuple[ReadableSpan, ...]) -> set[str]:
    links = [link.context for span in named(finished, "project") for link in span.links]
    return {f"00-{link.trace_id:032x}-{link.span_id:016x}-{link.trace_flags:02x}" for link in links}


async def test_the_trace_of_a_producer_goes_on_without_the_sdk(serve: Serve, model: MemoryServer) -> None:
    async with serve("agent", api_base_url=model.url, model="m") as api:
        with tracing.span("a producer's", parent=PARENT["traceparent"]):
            async for _ in ask(api.runtime, "default", "carried", "hello", user="ann"):
                pass
        events = [recorded.event async for recorded in api.runtime.log.read_thread("default", "carried")]
    assert len(events) == 5
    assert {event.traceparent for event in events} == {PARENT["traceparent"]}


async def test_metrics_count_requests_by_route_and_contain_no_names(serve: Serve, model: MemoryServer) -> None:
    async with (
        serve("agent", api_base_url=model.url, model="m") as api,
        api.client("counted-user") as ann,
        api.client("root", role="admin", scopes=["operate"]) as root,
    ):
        before = samples((await root.get("/metrics")).text)
        assert (await ann.post("/api/threads/counted-thread/answers", json={"message": "hello"})).status_code == 201
        assert (await ann.get("/nothing/here")).status_code == 404
        assert (await ann.get("/metrics")).status_code == 403
        page = await root.get("/admin/ai-agent/metrics/prometheus")
    assert page.headers["content-type"].startswith("text/plain")
    after = samples(page.text)

    def grown(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return after[key] - before.get(key, 0.0)

    assert grown("ai_agent_requests_total", agent="orchestrator", status="success") == 1
    assert grown("ai_agent_requests_total", agent="orchestrator", status="error") == 0
    assert grown("ai_agent_llm_latency_seconds_count", model="m") == 1
    assert grown("ai_agent_llm_tokens_prompt_sum") > 0
    assert grown("turnlog_http_request_seconds_count", method="POST", route=ROUTE, status="201") == 1
    assert grown("turnlog_http_request_seconds_count", method="GET", route="other", status="404") == 1
    assert after["turnlog_projection_stalled", frozenset({("projection", "messages")})] == 0
    assert after["turnlog_stream_bytes", frozenset()] > 0
    assert after["ai_agent_circuit_breaker_state", frozenset({("service", "llm")})] == 0
    assert "counted-" not in page.text
