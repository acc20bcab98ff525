"""Circuit breakers of all processes: their states, and closing them by hand.

A breaker is in the memory of the process that calls the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.metrics import BREAKER_STATES, BreakerState
from turnlog.agent.operations.all_processes import Reply, ask_processes
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound


@dataclass(frozen=True, slots=True)
class Circuit:
    """state: the worst of all processes. processes: how many have a breaker for the service. roles: the state in each
    role, the worst where several processes play it."""

    service: str
    state: BreakerState
    processes: int
    roles: dict[str, BreakerState]


async def list_breakers(runtime: Runtime) -> list[Circuit]:
    """Returns the breakers of all processes by service."""
    return _merged(await ask_processes(runtime, "breakers"))


async def reset_breaker(runtime: Runtime, service: str) -> Circuit:
    """Closes the service's breakers in every process. Raises NotFound where no process has one."""
    found = _merged(await ask_processes(runtime, "breakers", reset=service))
    for one in found:
        if one.service == service:
            return one
    raise NotFound(f"there is no circuit breaker {service[:80]!r}; GET /admin/ai-agent/circuit-breakers lists them")


def _merged(replies: Sequence[Reply]) -> list[Circuit]:
    states: dict[str, list[tuple[str, BreakerState]]] = {}
    for reply in replies:
        for service, state in reply.found.items():
            states.setdefault(service, []).append((reply.role, state))
    circuits = []
    for service, found in sorted(states.items()):
        by_severity = sorted(found, key=lambda one: BREAKER_STATES[one[1]])
        circuits.append(Circuit(service, by_severity[-1][1], len(found), dict(by_severity)))
    return circuits
