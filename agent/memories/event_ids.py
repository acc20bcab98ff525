"""Ids of events that follow from what led to them, so that a call that is repeated finds its events stored already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import NAMESPACE_URL, UUID, uuid5

from turnlog.agent.memories.writing import Place, Rows
from turnlog.events.contracts import EventData
from turnlog.events.memory_contracts import Memory

_EXTRA = uuid5(NAMESPACE_URL, "turnlog/memory-events")


@dataclass(frozen=True, slots=True)
class EventIds:
    """removed: the sequence at which the thread was last removed, if something of before that has our ids.

    Tenant and thread are part of every id: a shadow's events are others than those of the memories that count, and
    two tenants may use the same id.
    """

    place: Place
    cause: UUID | None
    removed: int = 0

    def of(self, candidate: Memory, n: int) -> UUID:
        """Of the n-th event that a candidate leads to."""
        return uuid5(candidate.id, f"{self._thread}/{n}")

    def of_extra(self, n: int, data: EventData) -> UUID:
        """By the call's cause; without one, by what the event says."""
        if self.cause is not None:
            return uuid5(self.cause, f"{self._thread}/extra/{n}")
        return uuid5(_EXTRA, f"{self._thread}/{n}/{data.type}/{data.model_dump_json()}")

    @property
    def _thread(self) -> str:
        thread = f"{self.place.tenant}/{self.place.thread}"
        return f"{thread}@{self.removed}" if self.removed else thread


async def event_ids(
    rows: Rows, candidates: Sequence[Memory], extra: Sequence[EventData], cause: UUID | None
) -> tuple[EventIds, Mapping[UUID, int]]:
    """The ids of a call, and those of them that are stored, with their sequences.

    A memory thread that was removed, such as a shadow that was dropped, may be filled again with the same: an id that
    it had before would be passed over as a duplicate, so there are others.
    """
    ids = EventIds(rows.place, cause)
    done = await _stored(rows, ids, candidates, extra)
    if done and (removed := await rows.removed_at()) > min(done.values()):
        ids = replace(ids, removed=removed)
        done = await _stored(rows, ids, candidates, extra)
    return ids, done


async def _stored(
    rows: Rows, ids: EventIds, candidates: Sequence[Memory], extra: Sequence[EventData]
) -> Mapping[UUID, int]:
    mine = [ids.of(one, 0) for one in candidates] + [ids.of_extra(n, data) for n, data in enumerate(extra)]
    return await rows.stored(mine)
