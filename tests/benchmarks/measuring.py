"""Rounds, medians and rows. The sides of a comparison take turns, so that a noisy machine disturbs all alike."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

Side = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. ratio: of ours to the floor; target: (">=" or "<=", bound), None without one."""

    what: str
    ours: str
    floor: str
    ratio: float | None
    spread: tuple[float, float] | None
    target: tuple[str, float] | None
    method: str

    @property
    def met(self) -> bool | None:
        if self.target is None or self.ratio is None:
            return None
        sign, bound = self.target
        return self.ratio >= bound if sign == ">=" else self.ratio <= bound


async def interleaved(rounds: int, *sides: Side) -> list[list[float]]:
    """What each side measured, by round. The order turns round by round; a first round warms up and is not kept."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        order = list(range(len(sides)))
        for at in order if number % 2 else reversed(order):
            value = await sides[at]()
            if number:
                found[at].append(value)
    return found


def ratio(ours: Sequence[float], floor: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median of the rounds' ratios, and their range: both sides of a round met the same machine."""
    each = [mine / theirs for mine, theirs in zip(ours, floor, strict=True)]
    return median(each), (min(each), max(each))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def seconds(work: Awaitable[object]) -> float:
    """Until the result is there; letting it go again is up to who asked for it."""
    started = time.perf_counter()
    result = await work
    took = time.perf_counter() - started
    del result
    return took


async def milliseconds(call: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """How long each of `times` calls took."""
    return [1000 * await seconds(call()) for _ in range(times)]


def per_second(rate: float) -> str:
    return f"{rate:,.0f}/s"


def ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"
