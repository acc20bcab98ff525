"""Plans from a seed which target is killed after which number of acknowledged events. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORKERS = {
    "projectors": ["projectors"],
    "reactors-1": ["reactors"],
    "reactors-2": ["reactors"],
    "agent": ["agent"],
}
# A backend is one process of Postgres. If it is killed, Postgres disconnects all clients and recovers by itself.
TARGETS: dict[str, int] = {
    "projectors": 6,
    "reactors-1": 2,
    "reactors-2": 2,
    "agent": 3,
    "nats": 6,
    "postgres": 4,
    "postgres-backend": 2,
}
# The target that must run for this target to exist.
PART_OF = {"postgres-backend": "postgres"}


@dataclass(frozen=True, slots=True)
class Kill:
    """The target dies after `after` acknowledged events and is started again after `back_after`."""

    target: str
    after: int
    back_after: int


def make(seed: int, kills: int, events: int, always: Sequence[str] = tuple(TARGETS)) -> list[Kill]:
    """Returns the kills in order of time. Each target of `always` is killed at least once if there are enough kills."""
    rng = random.Random(seed + 1)
    targets = list(always)[:kills]
    targets += rng.choices(list(TARGETS), weights=list(TARGETS.values()), k=kills - len(targets))
    rng.shuffle(targets)
    moments = sorted(rng.sample(range(events // 20, events * 9 // 10), kills))
    return [Kill(target, at, at + _absence(rng, target, events)) for target, at in zip(targets, moments, strict=True)]


def _absence(rng: random.Random, target: str, events: int) -> int:
    """Returns how many acknowledgements the target stays down. NATS restarts at once, because without NATS there are no
    acknowledgements."""
    return 0 if target == "nats" else rng.randint(0, events // 40)
