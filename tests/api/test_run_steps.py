"""Each step of a team's run has spans, metrics and costs for operators, and counts in the throttle."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Serve
from helpers.cli import commands, environment_of
from helpers.stage import MemoryServer
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import REGISTRY

from turnlog.consumers.traces import provider_of
from turnlog.events import tracing

pytestmark = pytest.mark.slow

SET = ("update_profile", {"fields": {"gpa": 9.9}})  # invalid, because no GPA is above 4
DELEGATE = ("delegate_to_agent", {"agent_type": "profile", "task_description": "Set the GPA"})
MINE = """
dated = "2026-11-20"
source = "a test"
[models]
"{}" = {{ input = 1000, output = 1000 }}
"""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    with tracing.use(provider_of(SimpleSpanProcessor(exporter))):
        yield exporter


def script(model: MemoryServer) -> None:
    model.reply("The profile agent knows.", tool_calls=[DELEGATE])
    model.reply("I note it.", tool_calls=[SET, ("get_profile", {})])
    model.reply("It cannot be 9.9.")


def priced(folder: Path, model: str) -> Path:
    """Returns a file with the price of one model. The server's model, which the team's agents use, is "m"."""
    file = folder / f"{model}.toml"
    file.write_text(MINE.format(model))
    return file


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_each_step_of_a_run_is_a_span_and_the_request_counts_once(
    serve: Serve, model: MemoryServer, spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    script(model)
    settings = {"api_base_url": model.url, "model": "m", "team": "advising", "prices": priced(tmp_path, "another")}
    names = [
        ("ai_agent_requests_total", {"agent": agent, "status": "success"}) for agent in ("profile", "orchestrator")
    ]
    names += [("ai_agent_tool_latency_seconds_count", {"tool": "update_profile"})]
    async with serve("agent", **settings) as api, api.client() as ann:
        before = [counted(name, **labels) for name, labels in names]
        asked = await ann.post("/api/threads/t/answers", json={"message": "Hello, note something"})
        assert asked.status_code == 201, asked.text
        after = [counted(name, **labels) for name, labels in names]
        limits = {limit["name"]: limit for limit in (await ann.get("/ai-agent/rate-limit?agentType=profile")).json()}
        [run] = (await ann.get("/api/runs")).json()["items"]
        steps = (await ann.get(f"/api/runs/{run['run_id']}")).json()["steps"]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0, 1]
    assert limits["agent_per_minute"]["used"] == 1 and limits["user_per_minute"]["used"] == 1
    by_name = {
        span.name: span for span in spans.get_finished_spans() if "gen_ai.operation.name" in (span.attributes or {})
    }
    run_span, first, second = (
        by_name[name] for name in ("invoke_workflow advising", "invoke_agent orchestrator", "invoke_agent profile")
    )
    assert _of(run_span)["gen_ai.workflow.name"] == "advising"
    for span in (first, second):
        assert span.parent is not None and span.parent.span_id == run_span.get_span_context().span_id
        assert _of(span)["gen_ai.conversation.id"] == "t" and _of(span)["gen_ai.usage.input_tokens"] > 0
    for tool, failed in (("update_profile", True), ("get_profile", False)):
        span = by_name[f"execute_tool {tool}"]
        assert span.parent is not None and span.parent.span_id == second.get_span_context().span_id
        assert (_of(span)["gen_ai.tool.name"], _of(span)["gen_ai.tool.type"]) == (tool, "function")
        assert _of(span).get("error.type") == ("tool_error" if failed else None)
    chats = [span for span in spans.get_finished_spans() if span.name == "chat m"]
    owners = [span.parent.span_id for span in chats if span.parent is not None]
    ids = (first.get_span_context().span_id, second.get_span_context().span_id)
    assert owners == [ids[0], ids[1], ids[1]] and {span.kind for span in chats} == {SpanKind.CLIENT}
    assert run["price_known"] is False and run["tokens_in"] > 0
    known = {step["kind"]: step["price_known"] for step in steps}
    assert (known["plan"], known["result"], known["end"]) == (False, True, False)


def _of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_runs_and_usage_show_cost_by_step_or_that_the_price_is_unknown(
    nats_url: str, database_url: str, tmp_path: Path
) -> None:
    with MemoryServer() as model:
        environment = environment_of(nats_url, database_url, tmp_path)
        environment |= {"API_BASE_URL": model.url, "API_KEY": "k", "TURNLOG_MODEL": "m", "TURNLOG_TEAM": "advising"}
        for priced_model, known in (("another", False), ("m", True)):
            turnlog = commands(environment | {"TURNLOG_PRICES": str(priced(tmp_path, priced_model))})
            script(model)
            user = "priced" if known else "unpriced"
            told = await turnlog("chat", user, "--user", user, "-m", "Hello, note something")
            assert told.code == 0, told.err
            [run] = (await turnlog("runs", "--user", user, "--json")).document
            _, line = (await turnlog("runs", "--user", user)).out.splitlines()
            short = line.split()[0]
            assert run["run_id"].startswith(short) and len(short) < len(run["run_id"])
            steps = (await turnlog("runs", short)).out.splitlines()
            assert "there is no run" in (await turnlog("runs", short, "--user", "bob")).err
            usage = (await turnlog("usage", "--by", "model", "--user", user)).out
            plan = next(line for line in steps if line.startswith("orchestrator  plan"))
            assert ("tokens, $" in plan) is known and ("price unknown" in plan) is not known, steps
            assert ("price unknown" in usage) is not known, usage
            assert (run["cost_usd"] > 0) is known and run["price_known"] is known
