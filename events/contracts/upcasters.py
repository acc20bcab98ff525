"""Upgrades old versions of event data on read, one version at a time.

An upcaster takes and returns plain JSON data; upcasters are chained until the contract's VERSION is reached. If the key
of the personal fields was destroyed, the data lacks these fields, and codec.py adds tombstones afterwards.
"""

from collections.abc import Callable
from typing import Any

from turnlog.events.contracts.derived import spans_of

Data = dict[str, Any]


def turn_recorded_v1(data: Data) -> Data:
    """Upgrades v1 to v2: `text` became `content`, which may contain blocks; `tokens` counted only the model's
    output."""
    new = {k: v for k, v in data.items() if k not in ("text", "tokens")}
    new["content"] = data.get("text", "")
    if data.get("tokens") is not None:
        new["tokens_out"] = data["tokens"]
    return new


def added(data: Data) -> Data:
    """Returns the data unchanged, because the newer version only adds optional fields, whose defaults apply to the
    older one."""
    return data


def answer_receipt_v5(data: Data) -> Data:
    """Upgrades v5 to v6: spans of turns replace lists of sequences, without a limit on the number of spans. Malformed
    lists are left for the contract to refuse."""
    tiers = [tier for tier in data.get("tiers") or () if isinstance(tier, dict)]
    lists = [data.get("dropped_seqs", []), *(tier.get("seqs", []) for tier in tiers)]
    new = {name: value for name, value in data.items() if name != "dropped_seqs"} | {"dropped": _spans(lists[0])}
    if "tiers" in data:
        new["tiers"] = [
            {name: value for name, value in tier.items() if name != "seqs"} | {"turns": _spans(seqs)}
            for tier, seqs in zip(tiers, lists[1:], strict=True)
        ]
    if all(_are_seqs(seqs) for seqs in lists):
        new["state"] = spans_of(seq for seqs in lists for seq in seqs)
    return new


def _spans(seqs: Any) -> Any:
    return {"count": len(set(seqs)), "spans": spans_of(seqs)} if _are_seqs(seqs) else seqs


def _are_seqs(seqs: Any) -> bool:
    return isinstance(seqs, list) and all(isinstance(seq, int) for seq in seqs)


# The comments name the fields that the next version adds.
UPCASTERS: dict[tuple[str, int], Callable[[Data], Data]] = {
    ("turn_recorded", 1): turn_recorded_v1,
    ("turn_recorded", 2): added,  # origin, which Event derives from role, name, user and text
    ("thread_opened", 1): added,  # metadata
    ("preferences_set", 1): added,  # timezone
    ("preferences_set", 2): added,  # names of any application
    ("preferences_set", 3): added,  # secrets
    ("preferences_set", 4): added,  # retention_days
    ("agent_configured", 1): added,  # name, tools and delegates: None means the team's values
    ("answer_requested", 1): added,  # agent: None means the default agent
    ("answer_receipt", 1): added,  # prompt and settings of the context, unknown for v1
    ("answer_receipt", 2): added,  # notes of a context built from a graph's state
    ("answer_receipt", 3): added,  # known: the other lines of the memory block
    ("answer_receipt", 4): added,  # the line of doubt
    ("answer_receipt", 5): answer_receipt_v5,
    ("memory_forgotten", 1): added,  # the turns in which the memory was said, unknown for v1
    ("memory_recorded", 1): added,  # metadata of the memory
    ("memory_conflict_raised", 1): added,
    ("memories_compacted", 1): added,
    ("usage_metered", 1): added,  # whether the price was known, not recorded in v1
    ("run_planned", 1): added,  # price_known, unknown for v1
    ("run_solved", 1): added,  # price_known, suggestions, milliseconds per phase
}


def upcast(type_: str, version: int, target: int, data: Data) -> Data:
    """Upgrades data step by step to the target version. A missing step would raise KeyError; a guard test rules this
    out."""
    for step in range(version, target):
        data = UPCASTERS[(type_, step)](data)
    return data
