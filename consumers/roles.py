"""The roles a process can play: projectors, reactors, agent, analytics, jobs, api. `turnlog up` plays them all."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import psycopg
from nats.js.api import DeliverPolicy

from turnlog.agent import metrics
from turnlog.agent.answering.request import AGENT
from turnlog.agent.memory.extraction.extraction_run import NAME as EXTRACTION
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.lanes import telling_other_processes
from turnlog.agent.models.protocol import Embedder
from turnlog.agent.operations.all_processes import answering_for_this_process
from turnlog.agent.operations.breakers import sharing_breakers
from turnlog.agent.operations.gauges import measuring
from turnlog.agent.operations.jobs.job import keep_jobs
from turnlog.agent.operations.jobs.job_states import all_jobs
from turnlog.agent.operations.role_processes import registered
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.agent.runtime import Runtime
from turnlog.consumers.runtime import projecting, row_security, throttle_connections
from turnlog.consumers.traces import exported
from turnlog.consumers.workers.analytics import NAME as ANALYTICS
from turnlog.consumers.workers.analytics import analytics, counting
from turnlog.consumers.workers.answering import AgentConsumer
from turnlog.consumers.workers.app import Interval, Subscription, consuming
from turnlog.consumers.workers.durable_consumer import Delivery, DurableConsumer, Work
from turnlog.consumers.workers.reactors.contradictions import NAME as CONTRADICTIONS
from turnlog.consumers.workers.reactors.contradictions import ContradictionReactor
from turnlog.consumers.workers.reactors.extraction import ExtractionReactor
from turnlog.consumers.workers.reactors.profiles import NAME as PROFILES
from turnlog.consumers.workers.reactors.profiles import ProfileReactor
from turnlog.consumers.workers.reactors.segments import NAME as SEGMENTS
from turnlog.consumers.workers.reactors.segments import SegmentReactor
from turnlog.consumers.workers.reactors.thread_maintenance import NAME as MEMORY
from turnlog.consumers.workers.reactors.thread_maintenance import ThreadMaintenance
from turnlog.consumers.workers.webhooks import delivering
from turnlog.events.errors import TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.stored import Stored
from turnlog.events.subjects import type_filter
from turnlog.events.tasks import pause

logger = logging.getLogger("turnlog.consumers")
ROLES = ("projectors", "reactors", "agent", "analytics", "jobs", "api")
# Longest time between two heartbeats of a loop. A round includes a model call with its retries. A job may take longer,
# but reports its progress.
EMBED_ROUND_S, SWEEP_ROUND_S, JOBS_ROUND_S = 300.0, 600.0, 900.0
# A stop takes at most 10 s: the API gets 3 s, jobs and reactors 1 s each. An answer that needs more time is made after
# the next start.
AGENT_GRACE_S = 4.0
JOB_GRACE_S = 1.0
# A person waits for the answer, so another worker must take over soon after one has died.
AGENT_ACK_WAIT_S = 5.0


@contextlib.asynccontextmanager
async def playing(
    runtime: Runtime,
    roles: Sequence[str],
    partitions: Sequence[int] | None = None,
    shared: bool = False,
    metrics_port: int | None = None,
    port_file: Path | None = None,
) -> AsyncIterator[None]:
    """Runs the roles while the block runs; at its end, running work gets a few seconds to finish.

    shared: divides the partitions among the projectors of all processes that pass it.
    metrics_port: the port that serves the process's metrics, or None. Raises MetricsPortTaken.
    port_file: see `serving`.
    """
    if runtime.log.keyring is None:
        logger.warning(
            "personal data in the log is not encrypted, and erasing a user leaves it there: set TURNLOG_KEK to what "
            "`turnlog encryption-key new-kek` prints"
        )
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(exported(runtime.settings))
        await stack.enter_async_context(answering_for_this_process(runtime, roles, ROLES))
        await stack.enter_async_context(telling_other_processes(runtime.log, runtime.heartbeats))
        stack.enter_context(metrics.served(metrics_port))
        if not {"reactors", "agent", "api"}.isdisjoint(roles):
            await asyncio.to_thread(lambda: runtime.models)  # building clients would block the event loop
        if not {"agent", "api"}.isdisjoint(roles):
            await stack.enter_async_context(sharing_breakers(runtime))
        if roles:
            await stack.enter_async_context(registered(runtime, roles))
        if metrics_port is not None:
            await stack.enter_async_context(measuring(runtime))
        if "projectors" in roles:
            await stack.enter_async_context(projecting(runtime, partitions, shared))
        if "reactors" in roles or "agent" in roles:
            await stack.enter_async_context(_models_at_work(runtime, roles))
        if "analytics" in roles:
            await stack.enter_async_context(analytics(runtime))
        if "jobs" in roles:
            await stack.enter_async_context(_jobs(runtime))
        if "api" in roles:
            from turnlog.consumers.api.serving import serving  # the web framework loads for half a second

            await stack.enter_async_context(row_security(runtime))
            await stack.enter_async_context(throttle_connections(runtime))
            await stack.enter_async_context(serving(runtime, partial(react, runtime), port_file))
        yield


@contextlib.asynccontextmanager
async def _models_at_work(runtime: Runtime, roles: Sequence[str]) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        if "reactors" in roles:
            await stack.enter_async_context(consuming(runtime, "reactors", *_reactors(runtime)))
            await stack.enter_async_context(delivering(runtime))
        if "agent" in roles:
            work, parallel = AgentConsumer(runtime).work, runtime.settings.agent_parallel
            consumer = DurableConsumer(runtime.pool, AGENT, work, parallel, AGENT_GRACE_S, AGENT_ACK_WAIT_S)
            subscription = Subscription(consumer, type_filter("answer_requested"))
            await stack.enter_async_context(consuming(runtime, "agent", [subscription]))
        yield


def _reactors(runtime: Runtime) -> tuple[list[Subscription], list[Interval]]:
    """Returns the consumers of the reactors, and the work that they do at intervals."""
    models, pool, turns = runtime.models, runtime.pool, type_filter("turn_recorded")
    memory = DurableConsumer(pool, MEMORY, ThreadMaintenance(runtime, models).work, give_way=runtime.give_way)
    segments = DurableConsumer(pool, SEGMENTS, SegmentReactor(runtime, models).work)
    requested = type_filter("segment_checkpoint_requested")
    subscriptions = [Subscription(memory, turns), Subscription(segments, requested)]
    intervals = [Interval("embedder", partial(_embed, runtime, models.embedder), EMBED_ROUND_S)]
    if runtime.settings.extract:
        extraction = ExtractionReactor(runtime, models)
        consumer = DurableConsumer(pool, EXTRACTION, extraction.work, give_way=runtime.give_way)
        subscriptions.append(Subscription(consumer, turns))
        if models.extraction is not None:
            intervals.append(Interval("extraction-sweep", extraction.sweep, SWEEP_ROUND_S))
    if models.extraction is not None and runtime.settings.compare_memories:
        compare = ContradictionReactor(runtime, models.extraction).work
        consumer = DurableConsumer(pool, CONTRADICTIONS, compare, give_way=runtime.give_way)
        subscriptions.append(Subscription(consumer, type_filter("memories_embedded"), DeliverPolicy.NEW))
    if models.extraction is not None and runtime.settings.enable_summary:
        profiles = ProfileReactor(runtime, models.extraction).work
        consumer = DurableConsumer(pool, PROFILES, profiles, give_way=runtime.give_way)
        subscriptions.append(Subscription(consumer, type_filter("memories_embedded"), DeliverPolicy.NEW))
    return subscriptions, intervals


async def react(runtime: Runtime, name: str, stored: Stored) -> None:
    """Processes one event with the durable consumer of this name, in this process. Raises RetryLater, and the errors
    of the work."""
    works: dict[str, Callable[[], Work]] = {
        MEMORY: lambda: ThreadMaintenance(runtime, runtime.models).work,
        SEGMENTS: lambda: SegmentReactor(runtime, runtime.models).work,
        EXTRACTION: lambda: ExtractionReactor(runtime, runtime.models).work,
        CONTRADICTIONS: lambda: _with_model(runtime, ContradictionReactor),
        PROFILES: lambda: _with_model(runtime, ProfileReactor),
        AGENT: lambda: AgentConsumer(runtime).work,
        ANALYTICS: lambda: counting(runtime),
    }
    await works[name]()([Delivery(stored)])


def _with_model(runtime: Runtime, reactor: type[ContradictionReactor] | type[ProfileReactor]) -> Work:
    """Returns the work of the reactor, or a function that does nothing if no language model is configured."""

    async def nothing(_deliveries: list[Delivery]) -> None: ...

    chat = runtime.models.extraction
    return nothing if chat is None else reactor(runtime, chat).work


@contextlib.asynccontextmanager
async def _jobs(runtime: Runtime) -> AsyncIterator[None]:
    """Runs the jobs while the block runs. At its end, a running job is cancelled after JOB_GRACE_S; its results so far
    are in the log, and the next run does the rest."""
    stop, jobs = asyncio.Event(), all_jobs(runtime.settings)

    async def keep(beat: Heartbeat) -> None:
        await keep_jobs(runtime, jobs, stop, beat=beat)

    async with runtime.heartbeats.running("jobs", "jobs", keep, stop, JOBS_ROUND_S, JOB_GRACE_S):
        yield


async def _embed(runtime: Runtime, embedder: Embedder, stop: asyncio.Event, beat: Heartbeat | None = None) -> None:
    """Embeds memories and chunks without a vector, periodically, until `stop` is set; pauses while projectors catch up.

    If a model or the database is unavailable, tries again later.
    """
    wait_s, told = runtime.settings.embed_poll_s, ""

    def pauses() -> bool:
        if beat is not None:
            beat.beat()
        return runtime.catching_up()

    while not stop.is_set():
        try:
            await runtime.give_way(stop)
            pauses()
            await embed_pending(runtime, embedder, stop=stop, pauses=pauses)
            wait_s, told = runtime.settings.embed_poll_s, ""
        except (ModelError, TurnlogError, psycopg.Error, OSError) as error:
            logger.log(logging.DEBUG if told == str(error) else logging.WARNING, "embedder waits: %s", error)
            told = str(error)
            wait_s = min(wait_s * 2, 60.0)
        await pause(stop, wait_s)
