"""Measures how much more a LangGraph turn costs in a long thread than in a new one."""

from collections.abc import Iterator, Sequence
from statistics import median

from tests.benchmarks.langgraph_chat import COMPARED, TURNS, Settle, Side, nothing
from tests.benchmarks.measuring import Row

WARM_UP = 5


async def growth(name: str, side: Side, texts: Iterator[str], settle: Settle) -> float:
    """Returns the time of a thread's last turns divided by the time of its first turns.

    After a warm-up, the last turns of one thread and the first turns of another alternate, because the speed of the
    machine changes within half a minute.
    """
    old, young = f"{name}-old", f"{name}-young"
    took: dict[str, list[float]] = {old: [], young: []}
    for _ in range(TURNS - COMPARED):
        await side.say(old, next(texts), nothing)
    for _ in range(WARM_UP):
        await side.say(young, next(texts), settle)
    for number in range(COMPARED):
        for thread in (old, young) if number % 2 else (young, old):
            await side.say(thread, next(texts), settle)
            took[thread].append(side.took[-1])
    return median(took[old]) / median(took[young])


def growth_row(ours: Sequence[float], floor: Sequence[float]) -> Row:
    return Row(
        "its growth over the thread",
        f"{median(ours):.2f} times",
        f"{median(floor):.2f} times",
        median(ours),
        (min(ours), max(ours)),
        None,
        f"Median of the last {COMPARED} of {TURNS} turns over the median of the first {COMPARED} (after {WARM_UP}) of "
        f"another thread, which take turns; median of {len(ours)} pairs of threads on each side. The ratio is ours "
        "alone, and has no target.",
    )
