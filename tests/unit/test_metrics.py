"""Tests metrics: names, labels, their port, and the documented queries."""

import gc
import json
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import get_args
from urllib.error import URLError

import promql_parser
import pytest
import yaml
from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from turnlog.agent import metrics
from turnlog.agent.models.calls import Breaker

DOCS = Path(__file__).parents[2] / "docs"
METRICS = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_metrics_are_served_while_the_block_runs_and_the_port_is_free_again(port: int) -> None:
    for _ in range(2):
        with metrics.served(port):
            assert "turnlog_session_checkpoints_total" in page(port)
        with pytest.raises(URLError):
            page(port)


def test_without_a_port_nothing_is_served() -> None:
    with metrics.served(None):
        pass


def test_a_port_that_is_taken_is_a_clear_error(port: int) -> None:
    clear = pytest.raises(metrics.MetricsPortTaken, match=f"port {port}.*TURNLOG_METRICS_PORT")
    with metrics.served(port), clear, metrics.served(port):
        pytest.fail("two servers on one port")


def test_labels_have_only_a_few_known_values() -> None:
    labels = {label for metric in METRICS for label in metric._labelnames}
    assert labels <= {
        *("agent", "cache", "level", "limit", "method", "model", "operation", "outcome", "projection"),
        *("route", "service", "status", "tier", "tool", "trigger", "type"),
    }


def test_the_documentation_lists_every_metric_with_its_labels() -> None:
    rows = "\n".join(re.findall(r"^\| (`.*?) \|", (DOCS / "operation.md").read_text(), re.MULTILINE))
    documented = re.findall(r"`((?:ai_agent|turnlog|memory|embedding|decay|cache)_\w+)(?:\{(.*?)\})?`", rows)
    assert dict(documented) == {name_of(metric): ",".join(metric._labelnames) for metric in METRICS}


def queries() -> list[str]:
    rules = yaml.safe_load((DOCS / "prometheus-alerts.yml").read_text())["groups"]
    panels = json.loads((DOCS / "grafana-dashboard.json").read_text())["panels"]
    alerts = [rule["expr"] for group in rules for rule in group["rules"]]
    return [*alerts, *(target["expr"] for panel in panels for target in panel["targets"])]


@pytest.mark.parametrize("query", queries())
def test_every_query_of_alerts_and_dashboard_is_promql_over_metrics_that_exist(query: str) -> None:
    selectors: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append(node)

    promql_parser.walk(promql_parser.parse(query), visit)
    assert selectors
    labels_of = {name: {*m._labelnames, "le"} for m in METRICS for name in series_of(m)}
    for selector in selectors:
        assert selector.name in labels_of
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels_of[selector.name]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """`make alerts` evaluates them."""
    rules = yaml.safe_load((DOCS / "prometheus-alerts.yml").read_text())["groups"]
    cases = yaml.safe_load((Path(__file__).parent / "prometheus_alerts.test.yml").read_text())["tests"]
    tested = [(rule["alertname"], bool(rule["exp_alerts"])) for case in cases for rule in case["alert_rule_test"]]
    alerts = [rule["alert"] for group in rules for rule in group["rules"]]
    assert sorted(tested) == sorted((alert, fires) for alert in alerts for fires in (True, False))


def series_of(metric: MetricWrapperBase) -> list[str]:
    if isinstance(metric, Histogram):
        return [f"{metric._name}{end}" for end in ("_bucket", "_sum", "_count")]
    return [name_of(metric)]


def name_of(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if isinstance(metric, Counter) else metric._name


def test_metrics_show_an_open_breaker_and_no_deleted_one() -> None:
    breaker = Breaker("it", failures=1)
    metrics.watch("a test's", breaker)

    def state() -> float | None:
        return REGISTRY.get_sample_value("ai_agent_circuit_breaker_state", {"service": "a test's"})

    assert state() == 0
    breaker.failed()
    assert state() == 2
    del breaker
    gc.collect()
    assert state() == 0


def test_the_hit_rate_of_a_cache_is_a_mean_over_the_processes_that_read_from_it() -> None:
    rates = [("cache_hit_rate", {"cache": "vectors"}, rate) for rate in (0.0, 0.5)]
    assert metrics.summary(rates)["cacheHitRate"] == {**dict.fromkeys(get_args(metrics.Cache), 0.0), "vectors": 0.25}


def test_a_process_has_no_hit_rate_of_a_cache_before_its_first_read() -> None:
    code = """
from prometheus_client import REGISTRY
from turnlog.agent import metrics

metrics.cache_read("vectors", 0)
metrics.cache_read("queries", 0, 1)
print([(s.labels, s.value) for m in REGISTRY.collect() for s in m.samples if s.name == "cache_hit_rate"])
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[({'cache': 'queries'}, 0.0)]"
