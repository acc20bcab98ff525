"""What is done at full size with --nightly, and at a part of it in every other run."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

FULL = False  # set by --nightly, before tests are collected


T = TypeVar("T")


def part(items: Sequence[T]) -> list[T]:
    """A tenth of them, in their order, in every other run."""
    if FULL:
        return list(items)
    return [items[at] for at in sorted(Random(4).sample(range(len(items)), max(1, len(items) // 10)))]


def examples(full: int) -> int:
    """How many examples a slow property tries: a tenth of them in every other run."""
    return full if FULL else max(full // 10, 5)
