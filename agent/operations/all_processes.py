"""Asks every process that plays roles for values in its memory: metrics, latest traces and circuit breakers.

A question goes to all processes over core NATS, and each process replies with its own values; nothing is stored.
"""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from prometheus_client import REGISTRY
from pydantic import TypeAdapter

from turnlog.agent import metrics
from turnlog.agent.operations.role_processes import AWAY, processes
from turnlog.agent.recent_traces import Trace, latest
from turnlog.agent.runtime import Runtime
from turnlog.events.subjects import PROCESSES

Kind = Literal["metrics", "traces", "breakers"]
# The longest wait for the replies of the processes that Postgres lists, the wait if Postgres cannot list them, and the
# time between two checks for replies.
LONGEST_S, PATIENCE_S, POLL_S = 2.0, 0.3, 0.01
MOST_BYTES = 4_000_000  # maximum size of a message; NATS accepts 8 MB
_TRACES = TypeAdapter(list[Trace])


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of one process. process: its machine and pid. role: the roles that it plays; "all" for `turnlog up`."""

    process: str
    role: str
    found: Any

    @property
    def traces(self) -> list[Trace]:
        return _TRACES.validate_python(self.found)


async def ask_processes(runtime: Runtime, kind: Kind, **asked: Any) -> list[Reply]:
    """Asks all processes, and returns their replies, sorted by role and process. If there is no reply, for example
    because NATS is unavailable, returns the values of this process.

    asked: arguments of the question. For traces: tenant, limit, only_failed. For breakers: reset, the service whose
    breakers are closed before the reply.
    """
    nc, replies, question = runtime.log.nc, dict[str, Reply](), {"kind": kind, **asked}

    async def hear(message: Msg) -> None:
        about = json.loads(message.data)
        replies[about["id"]] = Reply(about["process"], about["role"], about["found"])

    with contextlib.suppress(NatsError, OSError):
        expected = set()
        with contextlib.suppress(*AWAY):
            expected = {process.id for process in await processes(runtime) if process.is_alive}
        inbox = nc.new_inbox()
        watching = await nc.subscribe(inbox, cb=hear)
        try:
            await nc.publish(PROCESSES, json.dumps(question).encode(), reply=inbox)
            ends_at = time.monotonic() + (LONGEST_S if expected else PATIENCE_S)
            while time.monotonic() < ends_at and not (expected and expected <= replies.keys()):
                await asyncio.sleep(POLL_S)
        finally:
            await watching.unsubscribe()
    answers = list(replies.values()) or [Reply(_process(), "all", json.loads(json.dumps(_FOUND[kind](question))))]
    return sorted(answers, key=lambda reply: (reply.role, reply.process))


@contextlib.asynccontextmanager
async def answering_for_this_process(
    runtime: Runtime, roles: Sequence[str], all_roles: Sequence[str]
) -> AsyncIterator[None]:
    """Answers other processes' questions to this process while the block runs."""
    role = "all" if set(all_roles) <= set(roles) else "+".join(roles)
    me = {"id": str(runtime.process_id), "process": _process(), "role": role}

    async def hear(message: Msg) -> None:
        question = json.loads(message.data)
        values = _FOUND[question["kind"]](question)
        while len(body := json.dumps(me | {"found": values}).encode()) > MOST_BYTES:
            values = values[: len(values) // 2]
        await message.respond(body)

    watching = await runtime.log.nc.subscribe(PROCESSES, cb=hear)
    try:
        yield
    finally:
        with contextlib.suppress(NatsError, OSError):  # the subscription ended with its connection
            await watching.unsubscribe()


def _breakers(question: Mapping[str, Any]) -> Any:
    if question.get("reset") is not None:
        metrics.reset_breakers(question["reset"])
    return metrics.breakers()


def _latest(question: Mapping[str, Any]) -> Any:
    traces = latest(question["tenant"], question["limit"], question["only_failed"])
    return _TRACES.dump_python(traces, mode="json")


def _families(_: Mapping[str, Any]) -> Any:
    """Returns (name, help, type, samples) of each metric of this process, except metrics that are read from the
    servers."""
    return [
        (family.name, family.documentation, family.type, [(s.name, s.labels, s.value) for s in family.samples])
        for family in REGISTRY.collect()
        if family.name not in metrics.MEASURED
    ]


_FOUND: Mapping[Kind, Callable[[Mapping[str, Any]], Any]] = {
    "metrics": _families,
    "traces": _latest,
    "breakers": _breakers,
}


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
