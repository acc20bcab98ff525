"""Implements the compaction job, which closes duplicate memories and merges old ones, user by user.

Input: every user's valid memories that have a vector, read in batches into temporary files. Output: one
MemoriesCompacted event per group.
"""

import asyncio
import itertools
import logging
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Any, Generic, TypeVar, overload
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from turnlog.agent.memory.deciding.policy import Policy, importance_now, touched_at
from turnlog.agent.memory.deciding.writing import Decided, MemoryWriter, Place, Rows
from turnlog.agent.memory.upkeep.compaction import Compactable, DuplicateGroup, dedupe_event
from turnlog.agent.memory.upkeep.merge_groups import MemoriesOfKind, MergeCriteria
from turnlog.agent.operations.jobs.job import Done
from turnlog.agent.operations.jobs.merging import Merger, open_merger
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import EventData
from turnlog.events.errors import TurnlogError
from turnlog.events.progress import OnProgress
from turnlog.events.subjects import is_memory_thread
from turnlog.projectors.models.memories.lookup import memories_by_id
from turnlog.projectors.models.memories.vectors import (
    Embedded,
    VectorsOf,
    embedded_memories,
    separated_memories,
    users_with_vectors,
)

T = TypeVar("T")


class OnFile(Sequence[T], Generic[T]):
    """A sequence in a file. Items are appended as JSON and read one by one; several threads may read at once."""

    def __init__(self, file: IO[bytes], kind: TypeAdapter[T]) -> None:
        """Stores items in `file`, which must be binary and empty, and which nobody else may write. kind: the type of
        the items; JSON must preserve all of their data."""
        self._file, self._kind, self._ends = file, kind, array("Q", [0])
        self._range = range(0)

    def extend(self, items: Iterable[T]) -> None:
        written = [self._kind.dump_json(item) for item in items]
        self._file.write(b"".join(written))
        self._file.flush()
        for encoded in written:
            self._ends.append(self._ends[-1] + len(encoded))
        self._range = range(len(self._ends) - 1)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> "OnFile[T]": ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            part = OnFile(self._file, self._kind)
            part._ends, part._range = self._ends, self._range[at]
            return part
        index = self._range[at]
        start, end = self._ends[index], self._ends[index + 1]
        return self._kind.validate_json(os.pread(self._file.fileno(), end - start, start))


logger = logging.getLogger("turnlog.agent")
GROUPS_AT_ONCE = 200
COMPACTABLE = TypeAdapter(Compactable)
SKIPPED = {"stages_skipped_without_a_language_model": 2}
MERGE_COUNTS = ("merged", "summarised", "calls", "refused", "failed", "left")
EVENT_NAMESPACE = UUID("0d1f6a55-31f5-4d0e-8f0b-8ac1e33a6c62")


async def compact(runtime: Runtime, due_at: datetime, on_progress: OnProgress) -> Done:
    """Compacts the memories of every user of every tenant.

    Duplicates are closed. With a language model, old near-duplicates are merged and unimportant memories summarised;
    without a model, these two stages are skipped. If a user's events cannot be written, this counts as an error and the
    user's memories wait for the next run.
    """
    policy, writer = Policy.of(runtime.settings), MemoryWriter(runtime.log, runtime.pool)
    counts, errors, looked_at = Counter(looked_at=0, groups=0, closed=0), 0, 0
    async with runtime.pool.connection() as conn:
        owners = [owner for owner in await users_with_vectors(conn) if is_memory_thread(owner.thread, owner.user)]
    total = sum(owner.count for owner in owners)
    async with open_merger(runtime, writer, policy) as merger:

        def report() -> None:
            on_progress(looked_at, total)

        compaction = _Compaction(runtime, writer, policy, due_at, merger, report)
        counts.update(dict.fromkeys(SKIPPED if merger is None else MERGE_COUNTS, 0))
        for owner in owners:
            try:
                counts.update(await compaction.of_user(owner))
            except TurnlogError as error:
                errors += 1
                logger.warning("the memories of one user wait for the next run: %s", error)
            looked_at += owner.count
            on_progress(looked_at, total)
        counts.update(SKIPPED if merger is None else {"calls": merger.calls})
    counts["looked_at"] = looked_at
    return Done(dict(counts), errors)


@dataclass(frozen=True, slots=True)
class _Compaction:
    """One run of the compaction. merger: None without a language model. report: called after each step, because one
    user may take long."""

    runtime: Runtime
    writer: MemoryWriter
    policy: Policy
    due_at: datetime
    merger: Merger | None
    report: Callable[[], None]

    async def of_user(self, of: VectorsOf) -> Counter[str]:
        """Compacts a user's memories kind by kind, because only memories of one kind can be duplicates."""
        counts = Counter[str]()
        place = Place(of.tenant, of.user)
        with _file() as vectors_file, _file() as memories_file:
            vectors = np.memmap(vectors_file, np.float16, "w+", shape=(of.count, of.dimensions))
            memories = OnFile(memories_file, COMPACTABLE)
            await self._load(of, vectors, memories)
            async with self.runtime.pool.connection() as conn:
                separated = await separated_memories(conn, of.tenant, of.thread)
            for first, last in _kinds(memories):
                kind = MemoriesOfKind(memories[first:last], vectors[first:last], of.model, separated)
                counts.update(await self._of_kind(place, kind))
        return counts

    async def _of_kind(self, place: Place, kind: MemoriesOfKind) -> Counter[str]:
        settings, criteria = self.runtime.settings, None
        if self.merger is not None:
            before = self.due_at - timedelta(days=settings.compaction_after_days)
            criteria = MergeCriteria(before, settings.merge_similarity, settings.summarise_below)
        count_tokens = self.merger.count if self.merger else len
        duplicates, merges = await asyncio.to_thread(kind.duplicates_and_merges, criteria, count_tokens)
        counts = Counter[str]()
        self.report()
        for start in range(0, len(duplicates), GROUPS_AT_ONCE):
            counts.update(await _write(self.writer, place, duplicates[start : start + GROUPS_AT_ONCE]))
            self.report()
        if self.merger is not None and criteria is not None:
            merged, closed = await self.merger.merge(place, merges, self.report)
            compacted = closed | {member.id for group in duplicates for member in group.members}
            summaries = await asyncio.to_thread(kind.summaries, criteria, count_tokens, compacted)
            summarised, _ = await self.merger.merge(place, summaries, self.report)
            counts.update(merged + summarised)
        return counts

    async def _load(self, of: VectorsOf, vectors: NDArray[np.float16], memories: OnFile[Compactable]) -> None:
        """Writes all memories and vectors of a user into files. Memories added after the count wait for the next
        run."""
        async with self.runtime.pool.connection() as conn:
            async for batch in embedded_memories(conn, of):
                taken = batch[: of.count - len(memories)]
                if taken:
                    vectors[len(memories) : len(memories) + len(taken)] = np.stack([memory.vector for memory in taken])
                memories.extend(_compactable(memory, self.policy, self.due_at) for memory in taken)
                self.report()


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="turnlog-compaction-")


def _compactable(memory: Embedded, policy: Policy, due_at: datetime) -> Compactable:
    left = importance_now(memory, due_at, policy)
    return Compactable(
        *(
            memory.id,
            memory.kind,
            memory.content,
            memory.dedupe_key,
            left,
            memory.valid_from,
            memory.seq,
            memory.expires_at,
        ),
        origin=memory.origin,
        entities=tuple(memory.entities),
        touched_at=touched_at(memory),
        has_evidence=memory.has_evidence,
    )


def _kinds(memories: Sequence[Compactable]) -> Iterator[tuple[int, int]]:
    """Yields the range [first, last) of each kind; memories are ordered by kind."""
    first = 0
    for _, group in itertools.groupby(memories, key=lambda memory: memory.kind):
        last = first + sum(1 for _ in group)
        yield first, last
        first = last


async def _write(writer: MemoryWriter, place: Place, groups: Sequence[DuplicateGroup]) -> Counter[str]:
    """Writes the groups whose members are all still valid; a concurrent write may have closed a member."""

    async def decide(rows: Rows) -> Decided[Counter[str]]:
        ids = [member.id for group in groups for member in group.members]
        by_id = await memories_by_id(rows.conn, place.tenant, place.thread, ids)
        valid = {id_ for id_, row in by_id.items() if row.status == "valid" and row.valid_to is None}
        left = [group for group in groups if all(member.id in valid for member in group.members)]
        events: list[tuple[UUID, EventData]] = []
        for group in left:
            members = ",".join(str(member.id) for member in group.members)
            event_id = uuid5(EVENT_NAMESPACE, f"{place.tenant}/{place.thread}/{members}")
            events.append((event_id, dedupe_event(group)))
        return Decided(events, Counter(groups=len(left), closed=sum(len(group.duplicates) for group in left)))

    return await writer.write(place, decide)
