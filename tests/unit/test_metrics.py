"""Metrics of short-term memory: names, labels and the port they are served on (B)."""

import socket
import urllib.request
from urllib.error import URLError

import pytest
from prometheus_client import REGISTRY

from turnlog.agent.sessions import metrics


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


def test_no_label_names_a_thread_a_user_or_a_tenant() -> None:
    metrics.session_read("ram", 0.0001)
    metrics.checkpoint_ended("manual", "made")
    found = [metric for metric in REGISTRY.collect() if metric.name.startswith("turnlog_session_")]
    labels = {name for metric in found for sample in metric.samples for name in sample.labels}
    assert labels <= {"trigger", "outcome", "level", "le"}
    assert {metric.name for metric in found} == {
        "turnlog_session_checkpoints",
        "turnlog_session_summary_tokens",
        "turnlog_session_token_ratio",
        "turnlog_session_read_seconds",
        "turnlog_session_query_seconds",
    }
