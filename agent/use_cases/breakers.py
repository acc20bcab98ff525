"""Circuit breakers of all processes: their states, and closing them by hand (G5; E 11.1).

A breaker is in the memory of the process that calls the model. Whoever asks, asks all processes over NATS.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from turnlog.agent import metrics
from turnlog.agent.metrics import BREAKER_STATES, BreakerState
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.events.subjects import BREAKERS

PATIENCE_S = 0.3  # the number of processes is unknown


@dataclass(frozen=True, slots=True)
class Circuit:
    """state: the worst of all processes. processes: how many have a breaker for the service."""

    service: str
    state: BreakerState
    processes: int


async def list_breakers(runtime: Runtime) -> list[Circuit]:
    """The breakers by service, of the processes that answer within PATIENCE_S."""
    return _merged(await _asked(runtime, None))


async def reset_breaker(runtime: Runtime, service: str) -> Circuit:
    """Closes the service's breakers in every process. Raises NotFound where no process has one."""
    found = [one for one in _merged(await _asked(runtime, service)) if one.service == service]
    if not found:
        raise NotFound(f"there is no circuit breaker {service[:80]!r}; GET /admin/ai-agent/circuit-breakers lists them")
    return found[0]


@contextlib.asynccontextmanager
async def showing_breakers(log: Log) -> AsyncIterator[None]:
    """This process answers requests for its breakers while the block runs."""

    async def hear(message: Msg) -> None:
        service = json.loads(message.data)["reset"]
        if service is not None:
            metrics.reset_breakers(service)
        await message.respond(json.dumps(metrics.breakers()).encode())

    watching = await log.nc.subscribe(BREAKERS, cb=hear)
    try:
        yield
    finally:
        with contextlib.suppress(NatsError, OSError):  # it ended with its connection
            await watching.unsubscribe()


async def _asked(runtime: Runtime, reset: str | None) -> list[dict[str, BreakerState]]:
    nc, replies = runtime.log.nc, list[dict[str, BreakerState]]()
    inbox = nc.new_inbox()

    async def hear(message: Msg) -> None:
        replies.append(json.loads(message.data))

    watching = await nc.subscribe(inbox, cb=hear)
    try:
        await nc.publish(BREAKERS, json.dumps({"reset": reset}).encode(), reply=inbox)
        await asyncio.sleep(PATIENCE_S)
    finally:
        await watching.unsubscribe()
    return replies


def _merged(replies: list[dict[str, BreakerState]]) -> list[Circuit]:
    states: dict[str, list[BreakerState]] = {}
    for reply in replies:
        for service, state in reply.items():
            states.setdefault(service, []).append(state)
    worst = {service: max(found, key=BREAKER_STATES.__getitem__) for service, found in states.items()}
    return [Circuit(service, worst[service], len(states[service])) for service in sorted(states)]
