"""The job that makes memories that say the same one, user by user (M6; E 8.8)."""

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.memories.compaction import SAME, Compactable, Group, deduped, same_ones
from turnlog.agent.memories.near import near_pairs
from turnlog.agent.memories.policy import Policy, importance_now
from turnlog.agent.memories.similarity import least_cosine
from turnlog.agent.memories.writing import Decided, MemoryWriter, Place, Rows
from turnlog.consumers.jobs.job import Done, OnProgress
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import EventData
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import memory_thread
from turnlog.projectors.memory_compacting import Embedded, VectorsOf, embedded_memories, kept_apart, users_with_vectors
from turnlog.projectors.memory_lookup import memories_by_id

logger = logging.getLogger("turnlog.consumers")
GROUPS_AT_ONCE = 200
OF_JOB = UUID("0d1f6a55-31f5-4d0e-8f0b-8ac1e33a6c62")


async def compact(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
    """Every group of memories that say the same, in every tenant, is one event. Vectors wait in a file, not in memory.

    A user whose events cannot be written now is left for the next run and counted as an error.
    """
    policy, writer = Policy.of(runtime.settings), MemoryWriter(runtime.log, runtime.pool)
    counts, errors, looked_at = Counter(looked_at=0, groups=0, closed=0), 0, 0
    async with runtime.pool.connection() as conn:
        found = [one for one in await users_with_vectors(conn) if one.thread == memory_thread(one.user)]
    total = sum(one.count for one in found)
    for one in found:
        try:
            counts.update(await _compact_user(runtime, writer, one, policy, due_at))
        except TurnlogError as error:
            errors += 1
            logger.warning("the memories of one user wait for the next run: %s", error)
        looked_at += one.count
        on_progress(looked_at, total)
    counts["looked_at"] = looked_at
    return Done(dict(counts), errors)


async def _compact_user(
    runtime: Runtime, writer: MemoryWriter, of: VectorsOf, policy: Policy, due_at: datetime
) -> Counter[str]:
    """By kind, for only memories of one kind can say the same."""
    counts = Counter[str]()
    place = Place(of.tenant, of.user)
    with tempfile.TemporaryFile(prefix="turnlog-compaction-") as file:
        vectors = np.memmap(file, np.float16, "w+", shape=(of.count, of.dimensions))
        memories = await _load(runtime, of, vectors, policy, due_at)
        async with runtime.pool.connection() as conn:
            apart = await kept_apart(conn, of.tenant, of.thread)
        for first, last in _kinds(memories):
            groups = await asyncio.to_thread(_groups, memories[first:last], vectors[first:last], of.model, apart)
            for start in range(0, len(groups), GROUPS_AT_ONCE):
                counts.update(await _write(writer, place, groups[start : start + GROUPS_AT_ONCE]))
    return counts


def _groups(
    memories: Sequence[Compactable], vectors: NDArray[np.float16], model: str, apart: Sequence[frozenset[UUID]]
) -> list[Group]:
    """In a thread of its own: seconds of arithmetic, in which the process's other roles go on."""
    return same_ones(memories, near_pairs(vectors, least_cosine(model, SAME)), model, apart)


async def _load(
    runtime: Runtime, of: VectorsOf, vectors: NDArray[np.float16], policy: Policy, due_at: datetime
) -> list[Compactable]:
    """The vectors go into the file; a memory that was added since they were counted waits for the next run."""
    memories: list[Compactable] = []
    async with runtime.pool.connection() as conn:
        async for batch in embedded_memories(conn, of):
            taken = batch[: of.count - len(memories)]
            if taken:
                vectors[len(memories) : len(memories) + len(taken)] = np.stack([one.vector for one in taken])
            memories += [_compactable(one, policy, due_at) for one in taken]
    return memories


def _compactable(one: Embedded, policy: Policy, due_at: datetime) -> Compactable:
    left = importance_now(one, due_at, policy)
    return Compactable(one.id, one.kind, one.content, one.dedupe_key, left, one.valid_from, one.seq, one.expires_at)


def _kinds(memories: Sequence[Compactable]) -> list[tuple[int, int]]:
    """(first, behind the last) of each kind; the rows come in order of kind."""
    edges = [n for n in range(len(memories)) if n == 0 or memories[n].kind != memories[n - 1].kind]
    return list(zip(edges, [*edges[1:], len(memories)], strict=True))


async def _write(writer: MemoryWriter, place: Place, groups: Sequence[Group]) -> Counter[str]:
    """Groups of which every member is valid still, for somebody may have been faster."""

    async def decide(rows: Rows) -> Decided[Counter[str]]:
        ids = [one.id for group in groups for one in (group.kept, *group.others)]
        found = await memories_by_id(rows.conn, place.tenant, place.thread, ids)
        valid = {id_ for id_, row in found.items() if row.status == "valid" and row.valid_to is None}
        left = [group for group in groups if all(one.id in valid for one in (group.kept, *group.others))]
        events: list[tuple[UUID, EventData]] = [(_event_id(place, group), deduped(group)) for group in left]
        return Decided(events, Counter(groups=len(left), closed=sum(len(group.others) for group in left)))

    return await writer.write(place, decide)


def _event_id(place: Place, group: Group) -> UUID:
    members = ",".join(str(one.id) for one in (group.kept, *group.others))
    return uuid5(OF_JOB, f"{place.tenant}/{place.thread}/{members}")
