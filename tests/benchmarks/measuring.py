"""Measures in rounds and computes medians. Compared operations alternate, so that noise affects all of them alike."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

Side = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. floor: the value of the minimal implementation that turnlog is compared with. ratio: ours
    divided by floor. target: (">=" or "<=", bound), or None."""

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
    """Returns the measurements of each side by round. The order of the sides rotates; the first round is a warm-up and
    is dropped."""
    measured: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        order = list(range(len(sides)))
        for at in order if number % 2 else reversed(order):
            value = await sides[at]()
            if number:
                measured[at].append(value)
    return measured


def ratio(ours: Sequence[float], floor: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Returns the median and the range of the ratios of each round. Both values of a round were measured under the same
    load."""
    each = [mine / theirs for mine, theirs in zip(ours, floor, strict=True)]
    return median(each), (min(each), max(each))


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value that `share` of all values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def seconds(work: Awaitable[object]) -> float:
    """Returns the seconds until the result is available."""
    started = time.perf_counter()
    result = await work
    took = time.perf_counter() - started
    del result
    return took


async def milliseconds(call: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Returns the milliseconds of each of `times` calls."""
    return [1000 * await seconds(call()) for _ in range(times)]


def per_second(rate: float) -> str:
    return f"{rate:,.0f}/s"


def ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"
