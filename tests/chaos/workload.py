"""Generates the producers' operations for each lane from a seed. Pure.

A lane is one producer. A thread belongs to one lane, so the order of its events is the order in which the lane sends.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Literal

from turnlog.events.contracts import AnswerRequested, Event, EventData, ThreadRenamed, TurnRecorded

SOURCE = "chaos"
REPEATED = 20  # one operation in REPEATED is sent twice
START = datetime(2025, 1, 1, tzinfo=UTC)
Kind = Literal["single", "expected", "group", "batch", "mixed", "rename", "ask"]
WEIGHTS: dict[Kind, int] = {"single": 55, "expected": 10, "group": 12, "batch": 12, "mixed": 5, "rename": 4, "ask": 2}
_WORDS = (
    "essay",
    "deadline",
    "school",
    "interview",
    "draft",
    "scholarship",
    "visa",
    "portfolio",
    "申请",
    "文书",
    "大学",
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a producer. group: concurrent single appends. batch, mixed and ask: one atomic batch."""

    kind: Kind
    events: tuple[Event, ...]

    @property
    def is_repeated(self) -> bool:
        """Returns whether the producer sends the operation again, like a producer that was restarted before it recorded
        the reply."""
        return self.events[0].id.int % REPEATED == 0


@dataclass(frozen=True, slots=True)
class Workload:
    lanes: tuple[tuple[Operation, ...], ...]

    @property
    def events(self) -> list[Event]:
        return [event for lane in self.lanes for operation in lane for event in operation.events]


def make(seed: int, events: int, threads: int, lanes: int) -> Workload:
    """Returns a workload of at least `events` events (the last operation may add a few) over threads of very different
    lengths."""
    maker = _Maker(random.Random(seed), threads, lanes)
    while maker.made < events:
        maker.operation()
    return Workload(tuple(tuple(operations) for operations in maker.lanes))


class _Maker:
    def __init__(self, rng: random.Random, threads: int, lanes: int) -> None:
        self._rng = rng
        self._names = [f"chaos-{n}" if n % 7 else f"chaos.{n} * 混沌" for n in range(threads)]
        self._shares = list(accumulate(1 / (rank + 1) for rank in range(threads)))
        self.lanes: list[list[Operation]] = [[] for _ in range(lanes)]
        self.made = 0

    def operation(self) -> None:
        thread = self._rng.choices(range(len(self._names)), cum_weights=self._shares)[0]
        kind = self._rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
        lane = thread % len(self.lanes)
        self.lanes[lane].append(Operation(kind, self._events(kind, thread)))

    def _events(self, kind: Kind, thread: int) -> tuple[Event, ...]:
        match kind:
            case "group" | "mixed":
                return tuple(self._turn(other) for other in self._neighbours(thread))
            case "batch":
                return tuple(self._turn(thread) for _ in range(self._rng.randint(2, 40)))
            case "rename":
                return (self._event(thread, ThreadRenamed(label=f"label {self.made}")),)
            case "ask":
                turn = self._turn(thread, "user")
                return turn, self._event(thread, AnswerRequested(turn_id=turn.id))
        return (self._turn(thread),)

    def _neighbours(self, thread: int) -> Sequence[int]:
        """Returns different threads of the same lane."""
        mine = range(thread % len(self.lanes), len(self._names), len(self.lanes))
        return self._rng.sample(mine, min(len(mine), self._rng.randint(2, 8)))

    def _turn(self, thread: int, role: Literal["user", "assistant"] | None = None) -> Event:
        words = " ".join(self._rng.choices(_WORDS, k=self._rng.randint(3, 25)))
        speaker = role or self._rng.choice(("user", "assistant"))
        return self._event(thread, TurnRecorded(role=speaker, content=f"{self.made}: {words}"))

    def _event(self, thread: int, data: EventData) -> Event:
        self.made += 1
        return Event(
            id=uuid.UUID(int=self._rng.getrandbits(128), version=4),
            source=SOURCE,
            time=START + timedelta(seconds=self.made),
            thread=self._names[thread],
            user=f"user-{thread % 50}",
            data=data,
        )
