"""Declares every Prometheus metric of turnlog, in the process's registry of prometheus_client.

No label names a thread, a user, a tenant or anything else that a client or a model may choose, because their number is
unbounded. An application that embeds turnlog and serves its own /metrics serves these metrics too; `served` is for a
process without a server. docs/operation.md lists the metrics; a test compares the two lists.
"""

import contextlib
import statistics
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, get_args
from weakref import WeakSet

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from turnlog.events.contracts import EventData, LimitName, MemoryRecorded
from turnlog.events.errors import TurnlogError

Cache = Literal["vectors", "queries", "model-answers", "sessions"]
CheckpointOutcome = Literal["made", "failed", "stale"]
ANSWERING = "orchestrator"
OTHER = "other"
BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}
_FAST = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_SLOW = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
_TOKENS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)

REQUESTS = Counter("ai_agent_requests_total", "Answers by how they ended", ("agent", "status"))
REQUESTS_BY_AGENT = Counter("ai_agent_requests_by_agent", "Answers", ("agent",))
RETRIES = Counter("ai_agent_request_retries_total", "Tries of answers that failed and are repeated", ("agent",))
LATENCY = Histogram("ai_agent_latency_seconds", "Time of a whole answer", buckets=_SLOW)
ACTIVE = Gauge("ai_agent_active_requests", "Answers under way")
ERRORS = Counter("ai_agent_errors_total", "Answers that failed")
ERRORS_BY_TYPE = Counter("ai_agent_errors_by_type", "Answers that failed, by the code of the error", ("type",))
LLM_LATENCY = Histogram(
    "ai_agent_llm_latency_seconds", "Time of a call of the language model", ("model",), buckets=_SLOW
)
TOKENS_PROMPT = Histogram("ai_agent_llm_tokens_prompt", "Tokens of a request to the language model", buckets=_TOKENS)
TOKENS_COMPLETION = Histogram("ai_agent_llm_tokens_completion", "Tokens of what it answers", buckets=_TOKENS)
TOOL_LATENCY = Histogram("ai_agent_tool_latency_seconds", "Time of a tool call", ("tool",))
BREAKER_STATE = Gauge("ai_agent_circuit_breaker_state", "0 closed, 1 half-open, 2 open", ("service",))
OPERATIONS = Counter(
    "ai_agent_memory_operations_total", "Events of long-term memories, and memories recalled", ("operation", "type")
)
MEMORIES_CREATED = Counter("memory_created_total", "Long-term memories recorded")
MEMORIES_RETRIEVED = Counter("memory_retrieved_total", "Long-term memories that recall returned")
TIERS = Gauge("memory_tier_distribution", "Memories by tier", ("tier",))
EMBEDDING_SECONDS = Histogram(
    "embedding_latency_seconds", "Time to embed a question or texts", buckets=_FAST + _SLOW[3:]
)
DECAY_SECONDS = Histogram("decay_job_duration_seconds", "Time of the decay job", buckets=_SLOW)
CACHE_HIT_RATE = Gauge("cache_hit_rate", "Share of reads that a cache served since the process began", ("cache",))

HTTP_SECONDS = Histogram(
    "turnlog_http_request_seconds", "Time of an HTTP request, streams to their end", ("method", "route", "status")
)
REFUSALS = Counter("turnlog_throttle_refusals_total", "Requests that the throttle refused", ("limit",))
UNCOUNTED_REFUSALS = Counter(
    "turnlog_throttle_uncounted_refusals_total", "Requests refused because they could not be counted in time"
)
WAITING_REFUSALS = Counter(
    "turnlog_waiting_refusals_total", "Requests refused because too many of one user waited", ("type",)
)
THROTTLE_LOCAL = Gauge("turnlog_throttle_local", "1 while Postgres is away and this process counts requests alone")
LOCAL_ADMISSIONS = Counter("turnlog_throttle_local_admissions_total", "Requests that this process counted alone")
BEHIND = Gauge("turnlog_projection_behind_events", "Events left to apply, of the slowest partition", ("projection",))
STALLED = Gauge("turnlog_projection_stalled", "1 while events wait and the projection does not move", ("projection",))
REBUILDING = Gauge("turnlog_projection_rebuilding", "1 while it is rebuilt for a newer version", ("projection",))
DEAD_LETTERS = Gauge("turnlog_dead_letters", "Parked events", ("projection",))
LOOP_LAG = Histogram(
    "turnlog_event_loop_lag_seconds",
    "For how long a callback kept the event loop from all others",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
OTHER_LOG = Gauge("turnlog_other_log", "1 while the connected log is not the one that the rows were made from")
BROKEN_LOOPS = Gauge("turnlog_broken_loops", "Loops of living processes that do not get their work done")
DEAD_PROCESSES = Gauge("turnlog_dead_processes", "Processes that died and whose roles nobody plays since")
STREAM_BYTES = Gauge("turnlog_stream_bytes", "Size of the log on disk")
STREAM_LIMIT = Gauge("turnlog_stream_limit_bytes", "Size that it can reach; +Inf where that is unknown")

# Read from Postgres and NATS when metrics are collected (agent/operations/gauges.py): the same in every process.
MEASURED = frozenset(
    gauge._name
    for gauge in (
        *(BEHIND, STALLED, REBUILDING, DEAD_LETTERS, OTHER_LOG, BROKEN_LOOPS, DEAD_PROCESSES),
        *(STREAM_BYTES, STREAM_LIMIT, TIERS),
    )
)

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


BreakerState = Literal["closed", "half-open", "open"]


class HasState(Protocol):
    @property
    def state(self) -> BreakerState: ...

    def reset(self) -> None: ...


_breakers: dict[str, WeakSet[HasState]] = {}
_agents = {ANSWERING}  # agents with a separate label; tenants' agents and OpenAI's API share OTHER
_reads: dict[str, Tally[bool]] = {name: Tally() for name in get_args(Cache)}


def name_agents(agents: Iterable[str]) -> None:
    """Gives each agent that is defined in a file a separate label, because these are few; tenants' agents share one."""
    for agent in agents:
        _agents.add(agent)
        for status in ("success", "error"):
            REQUESTS.labels(agent, status)
        REQUESTS_BY_AGENT.labels(agent)
        RETRIES.labels(agent)


def _zero() -> None:
    """Creates the counters with known labels at start, because otherwise rate() cannot see the first increase."""
    name_agents((ANSWERING, OTHER))
    for name in get_args(LimitName):
        REFUSALS.labels(name)
    for kind in ("reads", "asks", "requests"):
        WAITING_REFUSALS.labels(kind)


_zero()


def _always(_: BaseException) -> bool:
    return True


@contextlib.contextmanager
def answering(agent: str, is_final: Callable[[BaseException], bool] = _always) -> Iterator[Callable[[str], None]]:
    """Counts and times one attempt at an answer. The answer counts once, with its last attempt, for the agent that made
    it. Yields a function that the block calls with that agent's name, if it is not `agent`.

    is_final: returns whether an error ends the answer, so that no other attempt follows.
    """

    def answered_by(other: str) -> None:
        nonlocal agent
        agent = other if other in _agents else OTHER

    answered_by(agent)
    started = time.perf_counter()
    ACTIVE.inc()
    try:
        yield answered_by
    except BaseException as error:
        if is_final(error):
            _ended(agent, "error", started)
            ERRORS.inc()
            ERRORS_BY_TYPE.labels(_code(error)).inc()
        else:
            RETRIES.labels(agent).inc()
        raise
    else:
        _ended(agent, "success", started)
    finally:
        ACTIVE.dec()


def _ended(agent: str, status: Literal["success", "error"], started: float) -> None:
    REQUESTS_BY_AGENT.labels(agent).inc()
    REQUESTS.labels(agent, status).inc()
    LATENCY.observe(time.perf_counter() - started)


def _code(error: BaseException) -> str:
    if isinstance(error, TurnlogError):
        return error.code
    return "unexpected" if isinstance(error, Exception) else "given-up"  # the client went away


def completed(model: str, seconds: float, tokens_in: int, tokens_out: int) -> None:
    """Counts a completion. model: the metric label, which is a configured model or OTHER."""
    LLM_LATENCY.labels(model).observe(seconds)
    TOKENS_PROMPT.observe(tokens_in)
    TOKENS_COMPLETION.observe(tokens_out)


def memory_event(data: EventData) -> None:
    """Counts an event that was appended to a memory thread."""
    kind = data.memory.kind if isinstance(data, MemoryRecorded) else "any"
    OPERATIONS.labels(data.type, kind).inc()
    if isinstance(data, MemoryRecorded):
        MEMORIES_CREATED.inc()


def memories_retrieved(kinds: list[str]) -> None:
    for kind in kinds:
        OPERATIONS.labels("memory_retrieved", kind).inc()
    MEMORIES_RETRIEVED.inc(len(kinds))


def watch(service: str, breaker: HasState) -> None:
    """Makes the gauge show the worst state of the service's breakers."""
    if service not in _breakers:
        watched = _breakers[service] = WeakSet()
        BREAKER_STATE.labels(service).set_function(
            lambda: max((BREAKER_STATES[member.state] for member in list(watched)), default=0)
        )
    _breakers[service].add(breaker)


def breakers() -> dict[str, BreakerState]:
    """Returns the worst state of each service's breakers in this process."""
    by_service = {
        service: [breaker.state for breaker in list(watched)] for service, watched in sorted(_breakers.items())
    }
    return {service: max(states, key=BREAKER_STATES.__getitem__) for service, states in by_service.items() if states}


def reset_breakers(service: str) -> None:
    """Closes this process's breakers of a service."""
    for breaker in list(_breakers.get(service, ())):
        breaker.reset()


SampleOf = tuple[str, Mapping[str, str], float]  # name, labels, value


def summary(samples: Iterable[SampleOf]) -> dict[str, Any]:
    """Returns the main numbers of these samples, summed over processes, as one JSON object."""
    by_name: dict[str, list[SampleOf]] = {}
    for sample in samples:
        by_name.setdefault(sample[0], []).append(sample)

    def values(name: str, label: str = "") -> dict[str, float]:
        sums: dict[str, float] = {}
        for _, labels, value in by_name.get(name, ()):
            key = labels.get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def mean(name: str) -> float | None:
        count = sum(values(f"{name}_count").values())
        return sum(values(f"{name}_sum").values()) / count if count else None

    # A process that has not read from a cache has no rate of it.
    rates = by_name.get("cache_hit_rate", ())
    return {
        "requests": {
            "total": sum(values("ai_agent_requests_total").values()),
            "byAgent": values("ai_agent_requests_total", "agent"),
            "byStatus": values("ai_agent_requests_total", "status"),
            "retries": sum(values("ai_agent_request_retries_total").values()),
            "active": sum(values("ai_agent_active_requests").values()),
            "latencySecondsMean": mean("ai_agent_latency_seconds"),
        },
        "errors": {
            "total": sum(values("ai_agent_errors_total").values()),
            "byType": values("ai_agent_errors_by_type_total", "type"),
        },
        "llm": {
            "calls": values("ai_agent_llm_latency_seconds_count", "model"),
            "latencySecondsMean": mean("ai_agent_llm_latency_seconds"),
            "tokensPrompt": sum(values("ai_agent_llm_tokens_prompt_sum").values()),
            "tokensCompletion": sum(values("ai_agent_llm_tokens_completion_sum").values()),
        },
        "tools": {
            "calls": values("ai_agent_tool_latency_seconds_count", "tool"),
            "latencySecondsMean": mean("ai_agent_tool_latency_seconds"),
        },
        "memory": {
            "created": sum(values("memory_created_total").values()),
            "retrieved": sum(values("memory_retrieved_total").values()),
            "operations": values("ai_agent_memory_operations_total", "operation"),
            "tiers": values("memory_tier_distribution", "tier"),
        },
        "cacheHitRate": {
            cache: statistics.fmean([sample[2] for sample in rates if sample[1]["cache"] == cache] or [0.0])
            for cache in get_args(Cache)
        },
    }


def cache_read(cache: Cache, hits: int, misses: int = 0) -> None:
    reads = _reads[cache]
    reads.update({True: hits, False: misses})
    if reads.total():
        CACHE_HIT_RATE.labels(cache).set(reads[True] / reads.total())


def session_read(level: str, seconds: float) -> None:
    """Counts the read of a session; passed to Sessions as on_read."""
    READ_SECONDS.labels(level).observe(seconds)
    cached = level in ("ram", "kv")
    cache_read("sessions", cached, not cached)


def checkpoint_ended(trigger: Literal["automatic", "manual"], outcome: CheckpointOutcome) -> None:
    CHECKPOINTS.labels(trigger, outcome).inc()


class MetricsPortTaken(TurnlogError):
    """The port in TURNLOG_METRICS_PORT is not available."""

    code = "metrics-port-taken"


@contextlib.contextmanager
def served(port: int | None) -> Iterator[None]:
    """Serves the process's metrics at http://…:port/metrics while the block runs. port: None means not to serve them.

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
