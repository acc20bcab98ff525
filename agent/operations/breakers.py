"""Lists and resets the circuit breakers of all processes, and shares their states between processes.

A breaker is in the memory of the process that calls the model or the tool. Processes tell each other when a call fails,
when a success ends failures, and when a breaker opens or closes, so that five failures in a row open a breaker even if
they were in different processes. The breakers of background work are not shared.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from turnlog.agent.metrics import BREAKER_STATES, BreakerState
from turnlog.agent.models.calls import Breaker
from turnlog.agent.operations.all_processes import Reply, ask_processes
from turnlog.agent.runtime import Runtime
from turnlog.agent.team.configured import server_team
from turnlog.events.errors import NotFound
from turnlog.events.subjects import BREAKERS
from turnlog.events.tasks import cancel


@dataclass(frozen=True, slots=True)
class Circuit:
    """A service's circuit over all processes. state: the worst of all processes. processes: how many have a breaker for
    the service. roles: the state in each role, the worst where several processes play it."""

    service: str
    state: BreakerState
    processes: int
    roles: dict[str, BreakerState]


async def list_breakers(runtime: Runtime) -> list[Circuit]:
    """Returns the breakers of all processes by service."""
    return _merged(await ask_processes(runtime, "breakers"))


async def reset_breaker(runtime: Runtime, service: str) -> Circuit:
    """Closes the service's breakers in every process. Raises NotFound if no process has a breaker for it."""
    circuits = _merged(await ask_processes(runtime, "breakers", reset=service))
    for circuit in circuits:
        if circuit.service == service:
            return circuit
    raise NotFound(f"there is no circuit breaker {service[:80]!r}; GET /admin/ai-agent/circuit-breakers lists them")


@contextlib.asynccontextmanager
async def sharing_breakers(runtime: Runtime) -> AsyncIterator[None]:
    """Shares breaker states with the other processes while the block runs.

    A process that starts asks the others which breakers are open. If a message is lost, this process learns the state
    from its own calls. Raises InvalidTeam.
    """
    me, nc, own = str(runtime.process_id), runtime.log.nc, _breakers_of(runtime)
    changes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def changed(service: str, is_open: bool) -> None:
        changes.put_nowait({"service": service, "open_for_s": 0.0 if is_open else None})

    def called(service: str, has_failed: bool, asker: str | None) -> None:
        changes.put_nowait({"service": service, "has_failed": has_failed, "asker": asker})

    async def tell() -> None:
        while True:
            said = json.dumps({"process": me, **await changes.get()}).encode()
            with contextlib.suppress(NatsError, OSError):
                await nc.publish(BREAKERS, said)

    async def hear(message: Msg) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a message may contain anything
            said = json.loads(message.data)
            if said["process"] == me:
                return
            if "service" not in said:  # a process that has just started
                for service, breaker in own.items():
                    if (open_for_s := breaker.open_for_s) is not None:
                        changes.put_nowait({"service": service, "open_for_s": open_for_s})
            elif (known := own.get(said["service"])) is not None:
                if "has_failed" in said:
                    known.follow_call(bool(said["has_failed"]), said["asker"])
                else:
                    open_for_s = said["open_for_s"]
                    known.follow(None if open_for_s is None else float(open_for_s))

    for service, breaker in own.items():
        breaker.on_change, breaker.on_call = partial(changed, service), partial(called, service)
    watching, telling = await nc.subscribe(BREAKERS, cb=hear), asyncio.create_task(tell(), name="breakers")
    try:
        await nc.publish(BREAKERS, json.dumps({"process": me}).encode())
        yield
    finally:
        for breaker in own.values():
            breaker.on_change = breaker.on_call = None
        await cancel(telling)
        with contextlib.suppress(NatsError, OSError):  # the subscription ended with its connection
            await watching.unsubscribe()


def _breakers_of(runtime: Runtime) -> Mapping[str, Breaker]:
    """Returns the breakers of the services that answers need, by service."""
    server, model = server_team(runtime), getattr(runtime.models.chat, "breaker", None)
    tools = {} if server is None else server.tools.breakers
    return {**tools, "llm": model} if isinstance(model, Breaker) else tools


def _merged(replies: Sequence[Reply]) -> list[Circuit]:
    states: dict[str, list[tuple[str, BreakerState]]] = {}
    for reply in replies:
        for service, state in reply.found.items():
            states.setdefault(service, []).append((reply.role, state))
    circuits = []
    for service, role_states in sorted(states.items()):
        by_severity = sorted(role_states, key=lambda role_state: BREAKER_STATES[role_state[1]])
        circuits.append(Circuit(service, by_severity[-1][1], len(role_states), dict(by_severity)))
    return circuits
