"""The job that makes memories that say the same one, and old ones fewer, user by user (M6; E 8.8)."""

import asyncio
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from turnlog.agent.memories.compaction import Compactable, Group, deduped
from turnlog.agent.memories.joints import Scope
from turnlog.agent.memories.one_kind import OneKind
from turnlog.agent.memories.policy import Policy, importance_now, touched_at
from turnlog.agent.memories.writing import Decided, MemoryWriter, Place, Rows
from turnlog.agent.settings import Settings
from turnlog.consumers.jobs.job import Done, OnProgress
from turnlog.consumers.jobs.joining import Joiner, joiner
from turnlog.consumers.jobs.on_file import OnFile
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import EventData
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import memory_thread
from turnlog.projectors.memory_compacting import Embedded, VectorsOf, embedded_memories, kept_apart, users_with_vectors
from turnlog.projectors.memory_lookup import memories_by_id

logger = logging.getLogger("turnlog.consumers")
GROUPS_AT_ONCE = 200
COMPACTABLE = TypeAdapter(Compactable)
SKIPPED = {"stages_skipped_without_a_language_model": 2}
JOINED = ("merged", "summarised", "calls", "refused", "failed", "left")
OF_JOB = UUID("0d1f6a55-31f5-4d0e-8f0b-8ac1e33a6c62")


async def compact(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
    """Every group of memories that say the same, in every tenant, is one event. Memories and vectors wait in files.

    With a language model, old memories that are nearly alike are merged and faint ones summarised; without one these
    stages are skipped. A user whose events cannot be written now is left for the next run and counted as an error.
    """
    policy, writer = Policy.of(runtime.settings), MemoryWriter(runtime.log, runtime.pool)
    counts, errors, looked_at = Counter(looked_at=0, groups=0, closed=0), 0, 0
    async with runtime.pool.connection() as conn:
        found = [one for one in await users_with_vectors(conn) if one.thread == memory_thread(one.user)]
    total = sum(one.count for one in found)
    async with joiner(runtime, writer, policy) as joins:
        compaction = _Compaction(runtime, writer, policy, due_at, joins)
        counts.update(dict.fromkeys(SKIPPED if joins is None else JOINED, 0))
        for one in found:
            try:
                counts.update(await compaction.of_user(one))
            except TurnlogError as error:
                errors += 1
                logger.warning("the memories of one user wait for the next run: %s", error)
            looked_at += one.count
            on_progress(looked_at, total)
        counts.update(SKIPPED if joins is None else {"calls": joins.calls})
    counts["looked_at"] = looked_at
    return Done(dict(counts), errors)


@dataclass(frozen=True, slots=True)
class _Compaction:
    """joins: None without a language model."""

    runtime: Runtime
    writer: MemoryWriter
    policy: Policy
    due_at: datetime
    joins: Joiner | None

    async def of_user(self, of: VectorsOf) -> Counter[str]:
        """By kind, for only memories of one kind can say the same."""
        counts = Counter[str]()
        place = Place(of.tenant, of.user)
        with _file() as vectors_file, _file() as memories_file:
            vectors = np.memmap(vectors_file, np.float16, "w+", shape=(of.count, of.dimensions))
            memories = OnFile(memories_file, COMPACTABLE)
            await _load(self.runtime, of, vectors, memories, self.policy, self.due_at)
            async with self.runtime.pool.connection() as conn:
                apart = await kept_apart(conn, of.tenant, of.thread)
            for first, last in _kinds(memories):
                kind = OneKind(memories[first:last], vectors[first:last], of.model, apart)
                counts.update(await self._of_kind(place, kind))
        return counts

    async def _of_kind(self, place: Place, kind: OneKind) -> Counter[str]:
        scope = None if self.joins is None else _scope(self.runtime.settings, self.due_at)
        groups, alike = await asyncio.to_thread(kind.groups, scope, self.joins.count if self.joins else len)
        counts = Counter[str]()
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            counts.update(await _write(self.writer, place, groups[start : start + GROUPS_AT_ONCE]))
        if self.joins is not None and scope is not None:
            merged, ended = await self.joins.join(place, alike)
            ended |= {one.id for group in groups for one in (group.kept, *group.others)}
            faint = await asyncio.to_thread(kind.faint, scope, self.joins.count, ended)
            summarised, _ = await self.joins.join(place, faint)
            counts.update(merged + summarised)
        return counts


def _scope(settings: Settings, due_at: datetime) -> Scope:
    before = due_at - timedelta(days=settings.compaction_after_days)
    return Scope(before, settings.merge_similarity, settings.summarise_below)


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="turnlog-compaction-")


async def _load(
    runtime: Runtime,
    of: VectorsOf,
    vectors: NDArray[np.float16],
    memories: OnFile[Compactable],
    policy: Policy,
    due_at: datetime,
) -> None:
    """All into files; a memory that was added since they were counted waits for the next run."""
    async with runtime.pool.connection() as conn:
        async for batch in embedded_memories(conn, of):
            taken = batch[: of.count - len(memories)]
            if taken:
                vectors[len(memories) : len(memories) + len(taken)] = np.stack([one.vector for one in taken])
            memories.extend(_compactable(one, policy, due_at) for one in taken)


def _compactable(one: Embedded, policy: Policy, due_at: datetime) -> Compactable:
    left = importance_now(one, due_at, policy)
    return Compactable(
        *(one.id, one.kind, one.content, one.dedupe_key, left, one.valid_from, one.seq, one.expires_at),
        origin=one.origin,
        entities=tuple(one.entities),
        touched_at=touched_at(one),
        has_evidence=one.has_evidence,
    )


def _kinds(memories: Sequence[Compactable]) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of each kind; the rows come in order of kind."""
    first = 0
    for _, group in itertools.groupby(memories, key=lambda one: one.kind):
        last = first + sum(1 for _ in group)
        yield first, last
        first = last


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
