"""Sizes tests: at full size with --nightly, at a part of it in other runs."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

FULL = False  # --nightly sets this before tests are collected


T = TypeVar("T")


def part(items: Sequence[T]) -> list[T]:
    """Returns all items with --nightly, else a tenth of them, in order."""
    if FULL:
        return list(items)
    return [items[at] for at in sorted(Random(4).sample(range(len(items)), max(1, len(items) // 10)))]


def examples(full: int) -> int:
    """Returns how many examples a slow property test tries: `full` with --nightly, else a tenth."""
    return full if FULL else max(full // 10, 5)
