"""Writes users' memories: remembers, edits, rates, forgets and reverts them, and answers questions.

    memories = Memories(log, pool)
    await memories.remember("default", "ann", "I live in Berlin")

Every call decides from rows that are up to date with the user's memory thread, and appends its events atomically
(writing.py). A memory that loses against a new one is closed, never deleted.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, get_args
from uuid import UUID, uuid4, uuid5

from uuid_utils.compat import uuid7

from turnlog.agent.memory.deciding.by_hand import (
    checked_content,
    checked_reason,
    checked_share,
    event_ids,
    handmade_memory,
)
from turnlog.agent.memory.deciding.conflicts import decide
from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.outcomes import Outcome, matching_rows, outcome
from turnlog.agent.memory.deciding.revisions import (
    MAX_FORGOTTEN_PER_WRITE,
    Forgetting,
    answered,
    archived,
    closing_answers,
    combined,
    edited,
    first_write,
    forgetting,
    forgotten_events,
    require_unexpired,
    reverted,
    valid_again,
)
from turnlog.agent.memory.deciding.semantic_conflicts import resolve_near_duplicates
from turnlog.agent.memory.deciding.writing import Clock, Decided, MemoryWriter, Place, Rows, utc_now
from turnlog.agent.runtime import Pool
from turnlog.events.contracts import (
    Answer,
    Derivation,
    EventData,
    Interval,
    MemoriesAccessed,
    MemoriesEmbedded,
    MemoriesRevised,
    Memory,
    MemoryConflictAnswered,
    MemoryForgotten,
    MemoryKind,
    MemoryRated,
)
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.projectors.models.memories.history_lookup import family, history
from turnlog.projectors.models.memories.lookup import (
    StoredMemory,
    conflicts,
    memories_by_id,
    memories_with_keys,
    unforgotten,
)
from turnlog.projectors.models.memories.text import content_key


class Memories:
    """Writes memories; one per process. Unknown or forgotten ids raise NotFound; invalid input raises InvalidMemory."""

    def __init__(self, log: Log, pool: Pool, clock: Clock = utc_now) -> None:
        self._writer, self._clock = MemoryWriter(log, pool, clock), clock

    async def remember_many(
        self,
        tenant: str,
        user: str,
        candidates: Sequence[Memory],
        extra: Sequence[EventData] = (),
        shadow: str | None = None,
        *,
        derivation: Derivation | None = None,
    ) -> list[Outcome]:
        """Decides on the candidates in order, each after the results of the earlier ones; returns one outcome for each.

        extra: other events of the memory thread (entities, progress). All events are appended atomically. A repeated
        call with the same candidate ids and the same extra changes nothing.
        """
        place = Place(tenant, user, shadow)

        async def on(rows: Rows) -> Decided[list[Outcome]]:
            ids, done = await event_ids(rows, candidates, extra)
            known = MemoryState(place, await matching_rows(rows, candidates), self._clock())
            events: list[tuple[UUID, EventData]] = []
            outcomes: list[Outcome] = []
            for candidate in candidates:
                decided = (
                    ()
                    if ids.of(candidate, 0) in done
                    else decide(candidate, known.matching(candidate), derivation=derivation)
                )
                known.apply(decided)
                events += [(ids.of(candidate, n), data) for n, data in enumerate(decided)]
                outcomes.append(outcome(candidate, decided, known))
            extras = [(ids.of_extra(n, data), data) for n, data in enumerate(extra)]
            events += [(id_, data) for id_, data in extras if id_ not in done]
            return Decided(events, outcomes)

        return await self._writer.write(place, on)

    async def remember(
        self, tenant: str, user: str, content: str, kind: MemoryKind = "FACT", *, id_: UUID | None = None, **fields: Any
    ) -> Outcome:
        """Stores a memory that a person wrote. id_: its id; a repeated call with the same id changes nothing. fields:
        other fields of Memory."""
        memory = handmade_memory(id_ or uuid4(), content, kind, self._clock(), fields)
        return (await self.remember_many(tenant, user, [memory]))[0]

    async def edit(self, tenant: str, user: str, memory_id: UUID, content: str) -> UUID:
        """Replaces a memory with one that has the new content; returns the new memory's id, or the old id if the
        content is the same.

        Raises MemoryNotInUse.
        """

        async def on(rows: Rows) -> Decided[UUID]:
            row, new = await _row(rows, memory_id), uuid4()
            if row.content == text:
                return Decided([], row.id)
            return Decided([(uuid7(), edited(row, new, text, self._clock()))], new)

        text = checked_content(content)
        return await self._writer.write(Place(tenant, user), on)

    async def rate(self, tenant: str, user: str, memory_id: UUID, importance: float) -> None:
        """Sets a memory's importance, 0 to 1; it decays from now on."""
        rated = MemoryRated(memory_id=memory_id, importance=checked_share("importance", importance))

        async def changed(_rows: Rows, _row: StoredMemory) -> list[EventData]:
            return [rated]

        await self._on_row(tenant, user, memory_id, changed)

    async def archive(self, tenant: str, user: str, memory_id: UUID, reason: str) -> None:
        """Archives a memory: it is kept but not recalled until it is reverted or said again. Raises MemoryNotInUse."""
        why = checked_reason(reason)

        async def changed(_rows: Rows, row: StoredMemory) -> list[EventData]:
            data = archived(row, why)
            return [] if data is None else [data]

        await self._on_row(tenant, user, memory_id, changed)

    async def forget(self, tenant: str, user: str, memory_id: UUID) -> list[UUID]:
        """Drops the content of a memory from the read models, with its duplicates, memories of equal content, merges
        with it and versions that it replaced by an edit; returns the ids of all of them. Other members of such a merge
        become valid again.

        The source turns are not changed; erasing a person is a different operation. Many memories are forgotten in
        several writes, the memory itself in the last one, so that an interrupted call can be repeated.
        """
        gone: list[UUID] = []

        async def on(rows: Rows) -> Decided[Forgetting]:
            row = await _row(rows, memory_id)
            place = (rows.place.tenant, rows.place.thread)
            same = [content_key(kind, row.content) for kind in get_args(MemoryKind)]
            alike = [memory_id, *(row.id for row in await memories_with_keys(rows.conn, *place, [], same))]
            families = {id_: await family(rows.conn, *place, id_) for id_ in dict.fromkeys(alike)}
            every = list(chain.from_iterable(families.values()))
            whole = combined(forgetting(id_, members) for id_, members in families.items())
            plan = first_write(whole, memory_id, every)
            events: list[EventData] = [*forgotten_events(plan, every)]
            if plan.reopened:
                events.append(MemoriesRevised(intervals=tuple(Interval(memory_id=id_) for id_ in plan.reopened)))
            events += closing_answers([*gone, *plan.ids], await conflicts(rows.conn, *place))
            return Decided([(uuid7(), data) for data in events], plan)

        while memory_id not in gone:
            gone += (await self._writer.write(Place(tenant, user), on)).ids
        return gone

    async def forget_all(self, tenant: str, user: str) -> int:
        """Drops the content of every memory, including closed and archived ones, and closes open questions; returns the
        number of memories.

        The events name no turns, so entities from the same turns stay. There may be several writes; an interrupted call
        can be repeated.
        """

        async def on(rows: Rows) -> Decided[tuple[int, bool]]:
            place = (rows.place.tenant, rows.place.thread)
            ids = await unforgotten(rows.conn, *place, MAX_FORGOTTEN_PER_WRITE)
            asked = (await conflicts(rows.conn, *place))[:MAX_FORGOTTEN_PER_WRITE]
            events: list[EventData] = [MemoryForgotten(memory_id=id_) for id_ in ids]
            events += [
                MemoryConflictAnswered(conflict_id=conflict.conflict_id, answer="old", intervals=())
                for conflict in asked
            ]
            return Decided([(uuid7(), data) for data in events], (len(ids), bool(events)))

        total, has_more = 0, True
        while has_more:
            count, has_more = await self._writer.write(Place(tenant, user), on)
            total += count
        return total

    async def revert(self, tenant: str, user: str, memory_id: UUID) -> None:
        """Makes a closed memory valid again and closes its replacements; an archived memory becomes valid.

        Raises NothingToRevert.
        """

        async def changed(rows: Rows, row: StoredMemory) -> list[EventData]:
            require_unexpired(row, self._clock())
            if row.status == "archived":
                return [MemoriesRevised(intervals=(valid_again(row.id),))]
            return [reverted(row.id, await history(rows.conn, rows.place.tenant, rows.place.thread, row.id))]

        await self._on_row(tenant, user, memory_id, changed)

    async def answer(self, tenant: str, user: str, conflict_id: UUID, answer: Answer) -> None:
        """Answers a question: the new memory, the old ones, or all become valid. Raises NotFound, QuestionSettled."""

        async def on(rows: Rows) -> Decided[None]:
            place = (rows.place.tenant, rows.place.thread)
            questions = await conflicts(rows.conn, *place, conflict_id, answered=True)
            if not questions:
                raise NotFound(f"there is no question {conflict_id} for user {user!r}; `turnlog memories` lists them")
            [question] = questions
            if question.answer == answer:
                return Decided([], None)
            new = await memories_by_id(rows.conn, *place, [question.memory_id])
            keys = [row.dedupe_key for row in new.values() if row.dedupe_key is not None]
            held = await memories_with_keys(rows.conn, *place, keys, [], [question.memory_id, *question.against])
            return Decided([(uuid7(), answered(question, held, answer, self._clock()))], None)

        await self._writer.write(Place(tenant, user), on)

    async def accessed(self, tenant: str, user: str, ids: Iterable[UUID], cause: UUID | None = None) -> None:
        """Records that memories were read, once for each cause. Each access increases a memory's importance; unknown
        ids are ignored."""
        place, read = Place(tenant, user), tuple(dict.fromkeys(ids))
        if read:
            event_id = uuid7() if cause is None else uuid5(cause, f"{place.thread}/accessed")
            await self._writer.append(place, [(event_id, MemoriesAccessed(memory_ids=read))])

    async def embedded(self, place: Place, model: str, dimensions: int, ids: Sequence[UUID]) -> None:
        """Records that the cache has vectors of these memories, and resolves their near-duplicates, among them and
        among the memories stored before.

        Both are written in one append, so that every memory with a vector has been compared.
        """

        async def on(rows: Rows) -> Decided[None]:
            revised = await resolve_near_duplicates(rows, ids, model, self._clock())
            embedded = MemoriesEmbedded(model=model, dimensions=dimensions, memory_ids=tuple(ids))
            events: list[EventData] = [embedded, *revised]
            return Decided([(uuid7(), data) for data in events], None)

        await self._writer.write(place, on)

    async def _on_row(
        self,
        tenant: str,
        user: str,
        memory_id: UUID,
        changes: Callable[[Rows, StoredMemory], Awaitable[Sequence[EventData]]],
    ) -> None:
        async def on(rows: Rows) -> Decided[None]:
            decided = await changes(rows, await _row(rows, memory_id))
            return Decided([(uuid7(), data) for data in decided], None)

        await self._writer.write(Place(tenant, user), on)


async def _row(rows: Rows, memory_id: UUID) -> StoredMemory:
    place = rows.place
    row = (await memories_by_id(rows.conn, place.tenant, place.thread, [memory_id])).get(memory_id)
    if row is None or row.status == "forgotten":
        raise NotFound(f"user {place.user!r} has no memory {memory_id}; `turnlog memories` lists them")
    return row
