"""Writing memories of users: what is remembered, by whom ever, and what people do to it by hand (M1, M5).

    memories = Memories(log, pool)
    await memories.remember("default", "ann", "I live in Berlin")

Every call decides on the rows as of the end of the user's memory thread and is one atomic append (writing.py). Who
loses against something new is closed, never erased.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, get_args
from uuid import UUID, uuid4, uuid5

from uuid_utils.compat import uuid7

from turnlog.agent.memories.alike_rows import alike_ones
from turnlog.agent.memories.by_hand import checked, share, written
from turnlog.agent.memories.conflicts import decide
from turnlog.agent.memories.event_ids import event_ids
from turnlog.agent.memories.forgetting import Forgetting, first_of, forgetting, settled, together, told
from turnlog.agent.memories.known import Known
from turnlog.agent.memories.outcomes import Outcome, outcome
from turnlog.agent.memories.revisions import answered, edited, must_live, reverted
from turnlog.agent.memories.rival_rows import rivals_of
from turnlog.agent.memories.writing import Clock, Decided, MemoryWriter, Place, Pool, Rows, utc_now
from turnlog.events.contracts import EventData
from turnlog.events.errors import NotFound
from turnlog.events.frozen import Derivation
from turnlog.events.log import Log
from turnlog.events.memory_contracts import (
    Answer,
    Interval,
    MemoriesAccessed,
    MemoriesEmbedded,
    MemoriesRevised,
    Memory,
    MemoryKind,
    MemoryRated,
)
from turnlog.projectors.memory_lookup import StoredMemory, conflicts, family, history, memories_by_id, rivals
from turnlog.projectors.memory_text import content_key


class Memories:
    """One for a process. Unknown or forgotten ids raise NotFound; bad input raises InvalidMemory."""

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
        cause: UUID | None = None,
        derivation: Derivation | None = None,
    ) -> list[Outcome]:
        """Decides on the candidates in order, the later ones on what the earlier ones led to; one outcome for each.

        extra: further events of the memory thread (what was found, how far was looked). Everything is appended
        together or not at all; a call that is repeated, with the same candidate ids and the same cause or extra,
        changes nothing. cause: of the events, where something else led to them.
        """
        place = Place(tenant, user, shadow)

        async def on(rows: Rows) -> Decided[list[Outcome]]:
            ids, done = await event_ids(rows, candidates, extra, cause)
            known = Known(place, await rivals_of(rows, candidates), self._clock())
            events: list[tuple[UUID, EventData]] = []
            outcomes: list[Outcome] = []
            for one in candidates:
                decided = () if ids.of(one, 0) in done else decide(one, known.rivals(one), derivation=derivation)
                known.apply(decided)
                events += [(ids.of(one, n), data) for n, data in enumerate(decided)]
                outcomes.append(outcome(one, decided, known))
            told = [(ids.of_extra(n, data), data) for n, data in enumerate(extra)]
            events += [(id_, data) for id_, data in told if id_ not in done]
            return Decided(events, outcomes)

        return await self._writer.write(place, on, cause)

    async def remember(
        self, tenant: str, user: str, content: str, kind: MemoryKind = "FACT", *, id_: UUID | None = None, **fields: Any
    ) -> Outcome:
        """As a person writes it. id_: of the memory, so that a repeated call is one. fields: others of Memory."""
        memory = written(id_ or uuid4(), content, kind, self._clock(), fields)
        return (await self.remember_many(tenant, user, [memory]))[0]

    async def edit(self, tenant: str, user: str, memory_id: UUID, content: str) -> UUID:
        """The id of the memory that says it now: a new one in the other's place, or the same if it did.

        Raises MemoryNotInUse.
        """

        async def on(rows: Rows) -> Decided[UUID]:
            row, new = await _row(rows, memory_id), uuid4()
            if row.content == text:
                return Decided([], row.id)
            return Decided([(uuid7(), edited(row, new, text, self._clock()))], new)

        text = checked(content)
        return await self._writer.write(Place(tenant, user), on)

    async def rate(self, tenant: str, user: str, memory_id: UUID, importance: float) -> None:
        """importance: 0 to 1; it decays from now on again."""
        rated = MemoryRated(memory_id=memory_id, importance=share("importance", importance))

        async def changed(_rows: Rows, _row: StoredMemory) -> list[EventData]:
            return [rated]

        await self._on_row(tenant, user, memory_id, changed)

    async def forget(self, tenant: str, user: str, memory_id: UUID) -> list[UUID]:
        """Drops the words of a memory, and of all that says the same, from the read models; returns their ids.

        The turn in which it was said stays what it is; erasing a person is another thing (M9). Very many go in several
        writes, the memory itself in the last one, so that a call that was broken off can be repeated.
        """
        gone: list[UUID] = []

        async def on(rows: Rows) -> Decided[Forgetting]:
            row = await _row(rows, memory_id)
            place = (rows.place.tenant, rows.place.thread)
            same = [content_key(kind, row.content) for kind in get_args(MemoryKind)]
            alike = [memory_id, *(one.id for one in await rivals(rows.conn, *place, [], same))]
            families = {one: await family(rows.conn, *place, one) for one in dict.fromkeys(alike)}
            every = list(chain.from_iterable(families.values()))
            whole = together(forgetting(one, members) for one, members in families.items())
            plan = first_of(whole, memory_id, every)
            events: list[EventData] = [*told(plan, every)]
            if plan.reopened:
                events.append(MemoriesRevised(intervals=tuple(Interval(memory_id=one) for one in plan.reopened)))
            events += settled([*gone, *plan.ids], await conflicts(rows.conn, *place))
            return Decided([(uuid7(), data) for data in events], plan)

        while memory_id not in gone:
            gone += (await self._writer.write(Place(tenant, user), on)).ids
        return gone

    async def revert(self, tenant: str, user: str, memory_id: UUID) -> None:
        """An ended memory holds again, and what took its place never did; an archived one comes back.

        Raises NothingToRevert.
        """

        async def changed(rows: Rows, row: StoredMemory) -> list[EventData]:
            must_live(row, self._clock())
            if row.status == "archived":
                return [MemoriesRevised(intervals=(Interval(memory_id=row.id),))]
            return [reverted(row.id, await history(rows.conn, rows.place.tenant, rows.place.thread, row.id))]

        await self._on_row(tenant, user, memory_id, changed)

    async def answer(self, tenant: str, user: str, conflict_id: UUID, answer: Answer) -> None:
        """Ends a question (M5): what is new holds, or what was held, or both. Raises NotFound, QuestionSettled."""

        async def on(rows: Rows) -> Decided[None]:
            place = (rows.place.tenant, rows.place.thread)
            found = await conflicts(rows.conn, *place, conflict_id, answered=True)
            if not found:
                raise NotFound(f"there is no question {conflict_id} to user {user!r}; `turnlog memories` lists them")
            [question] = found
            if question.answer == answer:
                return Decided([], None)
            new = await memories_by_id(rows.conn, *place, [question.memory_id])
            keys = [row.dedupe_key for row in new.values() if row.dedupe_key is not None]
            held = await rivals(rows.conn, *place, keys, [], [question.memory_id, *question.against])
            return Decided([(uuid7(), answered(question, held, answer, self._clock()))], None)

        await self._writer.write(Place(tenant, user), on)

    async def accessed(self, tenant: str, user: str, ids: Iterable[UUID], cause: UUID | None = None) -> None:
        """Somebody read them: once for each cause. Access reinforces a memory (M4); of unknown ids nothing comes."""
        place, read = Place(tenant, user), tuple(dict.fromkeys(ids))
        if read:
            event_id = uuid7() if cause is None else uuid5(cause, f"{place.thread}/accessed")
            await self._writer.append(place, [(event_id, MemoriesAccessed(memory_ids=read))])

    async def embedded(self, place: Place, model: str, dimensions: int, ids: Sequence[UUID]) -> None:
        """The cache has vectors of these memories. What turns out to say the same as another is settled with it.

        Both in one append: a memory never has a vector without having been compared.
        """

        async def on(rows: Rows) -> Decided[None]:
            revised = await alike_ones(rows, ids, model, self._clock())
            told = MemoriesEmbedded(model=model, dimensions=dimensions, memory_ids=tuple(ids))
            events: list[EventData] = [told, *revised]
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
    found = (await memories_by_id(rows.conn, place.tenant, place.thread, [memory_id])).get(memory_id)
    if found is None or found.status == "forgotten":
        raise NotFound(f"user {place.user!r} has no memory {memory_id}; `turnlog memories` lists them")
    return found
