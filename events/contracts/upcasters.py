"""Upgrades old versions of event data on read, one version at a time (L2).

An upcaster takes and returns plain JSON data; they are chained until the contract's VERSION is reached. Personal
fields are missing in it when their key was destroyed: tombstones come afterwards (codec.py).
"""

from collections.abc import Callable
from typing import Any

Data = dict[str, Any]


def turn_recorded_v1(data: Data) -> Data:
    """v1 → v2: `text` became `content` (blocks possible); `tokens` was the model's output alone."""
    new = {k: v for k, v in data.items() if k not in ("text", "tokens")}
    new["content"] = data.get("text", "")
    if data.get("tokens") is not None:
        new["tokens_out"] = data["tokens"]
    return new


def answer_receipt_v1(data: Data) -> Data:
    """v1 → v2: v2 adds the prompt and settings the context was built with; unknown for v1."""
    return data


def answer_receipt_v2(data: Data) -> Data:
    """v2 → v3: v3 adds the notes of a context built from a graph's state; v2 was never used for those."""
    return data


def answer_receipt_v3(data: Data) -> Data:
    """v3 → v4: v4 adds what the block shows besides memories; before, it showed nothing else."""
    return data


def answer_receipt_v4(data: Data) -> Data:
    """v4 → v5: v5 adds the line of doubt; before, there was none."""
    return data


def memory_forgotten_v1(data: Data) -> Data:
    """v1 → v2: v2 adds the turns in which the memory was said; unknown for v1."""
    return data


def memory_v1(data: Data) -> Data:
    """v1 → v2 of the events with a memory: v2 adds its metadata; none for v1."""
    return data


def thread_opened_v1(data: Data) -> Data:
    """v1 → v2: v2 adds the conversation's metadata; none for v1."""
    return data


def answer_requested_v1(data: Data) -> Data:
    """v1 → v2: v2 adds the agent that answers; the default one for v1."""
    return data


UPCASTERS: dict[tuple[str, int], Callable[[Data], Data]] = {
    ("turn_recorded", 1): turn_recorded_v1,
    ("thread_opened", 1): thread_opened_v1,
    ("answer_requested", 1): answer_requested_v1,
    ("answer_receipt", 1): answer_receipt_v1,
    ("answer_receipt", 2): answer_receipt_v2,
    ("answer_receipt", 3): answer_receipt_v3,
    ("answer_receipt", 4): answer_receipt_v4,
    ("memory_forgotten", 1): memory_forgotten_v1,
    ("memory_recorded", 1): memory_v1,
    ("memory_conflict_raised", 1): memory_v1,
    ("memories_compacted", 1): memory_v1,
}


def upcast(type_: str, version: int, target: int, data: Data) -> Data:
    """Raises KeyError when a step of the chain is missing, which a guard test rules out."""
    for step in range(version, target):
        data = UPCASTERS[(type_, step)](data)
    return data
