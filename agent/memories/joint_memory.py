"""The memory that stands for several, and how they end for it (M6). Pure."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid5

from turnlog.agent.memories.chains import closed
from turnlog.agent.memories.importance import first_importance
from turnlog.agent.memories.joints import Method
from turnlog.agent.memories.policy import Policy, importance_now
from turnlog.events.frozen import Derivation
from turnlog.events.memory_contracts import MemoriesCompacted, Memory, MemorySource
from turnlog.projectors.memory_lookup import StoredMemory


def compacted(
    method: Method,
    rows: Sequence[StoredMemory],
    text: str,
    event_id: UUID,
    now: datetime,
    policy: Policy,
    similarity: float | None,
    derivation: Derivation,
) -> MemoriesCompacted:
    """rows: the members, valid, in the order in which they were said. From now on the made memory holds for them.

    A merge is as important as its most important member is now, a summary begins with the importance of its kind;
    both are as sure as the least sure member. The evidence is the members' own: the first and the last quote of each.
    """
    at = max(now, *(row.valid_from for row in rows))
    merge = method == "merge"
    categories = {row.category for row in rows}
    memory = Memory(
        id=uuid5(event_id, "made"),
        kind=rows[0].kind if merge else "SUMMARY",
        content=text,
        category=categories.pop() if len(categories) == 1 else None,
        importance=max(importance_now(row, at, policy) for row in rows) if merge else first_importance("SUMMARY", text),
        confidence=min(row.confidence for row in rows),
        origin="compaction",
        strategy="KEEP_BOTH",  # a vector that finds it like what a person said ends neither
        valid_from=at,
        sources=_evidence(rows),
        entities=tuple(dict.fromkeys(name for row in rows for name in row.entities)),
    )
    return MemoriesCompacted(
        method=method,
        members=tuple(row.id for row in rows),
        memory=memory,
        intervals=tuple(closed(row.id, at, memory.id, "merged") for row in rows),
        similarity=similarity,
        derivation=derivation,
    )


def _evidence(rows: Sequence[StoredMemory]) -> tuple[MemorySource, ...]:
    ends = (source for row in rows for source in (*row.sources[:1], *row.sources[-1:]))
    return tuple(sorted(dict.fromkeys(ends), key=lambda source: (source.said_at, source.seq)))
