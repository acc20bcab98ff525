"""Implements the strategy MERGE: joins the contents of memories with the same dedupe key. Pure.

Each statement stays a separate memory (a member). From the second statement on, a merged memory is valid instead of the
members: first one of two members, then one of three, and so on, each from the time when its last member was said.
Merged memories depend on the members alone, so the order of arrival does not matter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, UUID, uuid5

from turnlog.agent.memory.deciding.chains import Link, closed, in_order, link_of, run_out
from turnlog.events.contracts import Interval, Memory
from turnlog.projectors.models.memories.lookup import StoredMemory
from turnlog.projectors.models.memories.text import normal

_MERGES = uuid5(NAMESPACE_URL, "turnlog/merged-memory")


@dataclass(frozen=True, slots=True)
class Merging:
    """The result of a merge. made: the merged memories, oldest first. intervals: those of the members and of the merged
    memories."""

    made: list[Memory] = field(default_factory=list)
    intervals: dict[UUID, Interval] = field(default_factory=dict)


def is_merge(row: StoredMemory) -> bool:
    return row.strategy == "MERGE" and row.origin == "compaction" and row.dedupe_key is not None


def merging(links: Iterable[Link], memories: Mapping[UUID, Memory]) -> Merging:
    """Merges the memories of a chain. memories: the memory of every link, by id. An edit by the user starts a new
    chain: memories from before it are not merged again."""
    plan = Merging()
    joined: list[Link] = []
    holder: Link | None = None
    for link in in_order(links):
        joined = [*([] if link.edit else [earlier for earlier in joined if not earlier.ended(link.begin)]), link]
        node = link if len(joined) == 1 else _node(plan, joined, memories)
        if holder is not None and (link.edit or node is not link):
            plan.intervals[holder.id] = closed(holder.id, link.begin, node.id, "edited" if link.edit else "merged")
        else:
            plan.intervals.update(run_out(holder))
        if node is not link:
            plan.intervals[link.id] = closed(link.id, link.begin, node.id, "merged")
        holder = node
    plan.intervals.update(run_out(holder))
    return plan


def _node(plan: Merging, joined: Sequence[Link], memories: Mapping[UUID, Memory]) -> Link:
    last = joined[-1]
    made = merged([memories[link.id] for link in joined]).model_copy(update={"valid_from": last.begin})
    plan.made.append(made.model_copy(update={"id": merge_id(made)}))
    return link_of(plan.made[-1])


def merge_id(memory: Memory) -> UUID:
    """Returns an id derived from the memory's dedupe key, content and valid_from."""
    words = f"{memory.dedupe_key}\n{normal(memory.content)}\n{memory.valid_from.timestamp()}"
    return uuid5(_MERGES, words)


def merged(members: Sequence[Memory]) -> Memory:
    """Returns the merged memory. members: oldest first. The result has their highest importance and lowest
    confidence."""
    last = members[-1]
    ends = [member.expires_at for member in members if member.expires_at is not None]
    return last.model_copy(
        update={
            "content": joined_text([member.content for member in members]),
            "value": joined_text([member.content if member.value is None else member.value for member in members]),
            "importance": max(member.importance for member in members),
            "confidence": min(member.confidence for member in members),
            "origin": "compaction",
            "rule": None,
            "expires_at": max(ends) if len(ends) == len(members) else None,
            "sources": tuple(source for member in members for source in member.sources[:1]),
            "entities": tuple(dict.fromkeys(name for member in members for name in member.entities)),
        }
    )


def joined_text(texts: Iterable[str]) -> str:
    """Returns the different texts in order, with "; " between them, or "；" if one of them contains Chinese."""
    different: dict[str, str] = {}
    for text in texts:
        different.setdefault(normal(text), text)
    chinese = any("\u4e00" <= letter <= "\u9fff" for text in different for letter in text)
    return ("；" if chinese else "; ").join(different.values())
