"""Prometheus metrics of short-term memory (B, 监控指标), in prometheus_client's registry of the process.

No label names a thread, a user or a tenant: their number is unbounded. An embedding application that serves its own
/metrics serves these too; `served` is for a process that has no server.
"""

import contextlib
from collections.abc import Iterator
from typing import Literal

from prometheus_client import Counter, Histogram, start_http_server

from turnlog.events.errors import TurnlogError

Outcome = Literal["made", "failed", "stale"]
Level = Literal["ram", "kv", "postgres", "log"]
_FAST = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

CHECKPOINTS = Counter(
    "turnlog_session_checkpoints", "Checkpoints of session segments, by how they ended", ("trigger", "outcome")
)
SUMMARY_TOKENS = Histogram(
    "turnlog_session_summary_tokens",
    "Tokens of a checkpoint's summary",
    buckets=(25, 50, 100, 200, 400, 600, 800, 1_000, 1_500, 2_000),
)
TOKEN_RATIO = Histogram(
    "turnlog_session_token_ratio",
    "Share of the window that history and query take, at each query",
    buckets=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0, 1.5),
)
READ_SECONDS = Histogram(
    "turnlog_session_read_seconds", "Time to read a session, by the level that had it", ("level",), buckets=_FAST
)
QUERY_SECONDS = Histogram("turnlog_session_query_seconds", "Time of a whole memory query", buckets=_FAST)


class MetricsPortTaken(TurnlogError):
    """The port of TURNLOG_METRICS_PORT cannot be listened on."""

    code = "metrics-port-taken"


def session_read(level: str, seconds: float) -> None:
    """Passed to Sessions as on_read."""
    READ_SECONDS.labels(level).observe(seconds)


def checkpoint_ended(trigger: Literal["automatic", "manual"], outcome: Outcome) -> None:
    CHECKPOINTS.labels(trigger, outcome).inc()


@contextlib.contextmanager
def served(port: int | None) -> Iterator[None]:
    """Serves the process's metrics at http://…:port/metrics while the block runs; None: not at all.

    Raises MetricsPortTaken.
    """
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port)
    except OSError as error:
        raise MetricsPortTaken(
            f"cannot serve metrics on port {port}: {error.strerror or error}. Every process of a machine needs a port "
            "of its own: set TURNLOG_METRICS_PORT to a free one, or leave it out"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
