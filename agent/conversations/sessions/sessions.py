"""Reads sessions of one tenant from the nearest copy, and changes them through the log.

A change is decided from the newest state and appended with the thread's last sequence as the expected version. After a
concurrent append, the new events are applied and the change is decided again. Nothing is locked, and no change is lost.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Self
from uuid import UUID
from weakref import WeakValueDictionary

from uuid_utils.compat import uuid7

from turnlog.agent.conversations.sessions.bucket import Removals
from turnlog.agent.conversations.sessions.levels import Level, Levels, no_session
from turnlog.agent.conversations.sessions.tail import Copy
from turnlog.agent.runtime import Pool
from turnlog.events.append import DECIDING_S, deciding_again
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import Event, EventData, Recorded, SegmentCheckpointed, SessionCreated
from turnlog.events.errors import GapInLog, LogUnavailable, WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.publish import Appended
from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint
from turnlog.projectors.models.sessions.state import SessionState, covered_by, evolve

OnRead = Callable[[Level, float], None]
Decide = Callable[[SessionState], Sequence[EventData]]
_NUL = b"\\u0000"


class Sessions:
    """The sessions of one tenant: `async with Sessions(log, pool, tenant) as sessions`. There is one per process,
    because its copies are in memory.

    Reads work while either the log or Postgres is unavailable; writes raise LogUnavailable without the log. A read sees
    everything that this process has written, and changes of other writers once their message has arrived; change()
    always decides from the newest state.
    """

    def __init__(self, log: Log, pool: Pool, tenant: str, on_read: OnRead = lambda level, seconds: None) -> None:
        """Calls `on_read` after every read with the level that answered and the seconds it took."""
        self._log, self._tenant, self._on_read = log, tenant, on_read
        self._levels = Levels(log, pool, tenant)
        self._removals = Removals(log.nc, tenant, self._levels.bucket)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self) -> None:
        await self._levels.bucket.open()
        await self._removals.start()

    async def close(self) -> None:
        await self._removals.close()
        await self._levels.hot.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def get(self, thread: str) -> SessionState:
        """Returns the present session. Raises NotFound, and LogUnavailable if no level can answer."""
        return (await self.get_with_level(thread))[0]

    async def get_with_level(self, thread: str) -> tuple[SessionState, Level]:
        """Returns the session, and the level from which it was read."""
        began = time.perf_counter()
        copy, level = await self._levels.current(thread)
        self._on_read(level, time.perf_counter() - began)
        return _state(copy), level

    async def create(
        self,
        thread: str,
        created: SessionCreated | None = None,
        *,
        user: str | None = None,
        expected: int | None = None,
    ) -> SessionState:
        """Begins a session or restarts an existing one. created: None uses the default rules.

        expected: the thread's last sequence; None for any. Raises WrongExpectedVersion, LogUnavailable, InvalidEvent.
        """
        events = await self._events(thread, [created or SessionCreated()], user)
        checked = self._levels.hot.now()
        acks = await self._append(thread, events, expected)
        return await self._written(Copy(None, 0), events, acks, checked)

    async def change(self, thread: str, decide: Decide, *, user: str | None = None) -> SessionState:
        """Appends the events that decide() returns for the newest state; decide() is called again after a concurrent
        append.

        user: None means that of the session. An empty decision appends nothing. Raises NotFound, LogUnavailable,
        WrongExpectedVersion after DECIDING_S, and the errors of decide.
        """
        # one writer of this process at a time, because concurrent ones only cause retries
        async with self._turns.setdefault(thread, asyncio.Lock()):
            try:
                return await deciding_again()(self._change, thread, decide, user)
            except WrongExpectedVersion as error:
                raise WrongExpectedVersion(
                    f"the session of thread {thread!r} was changed by others for {DECIDING_S:g} s, always just "
                    "before this change could be stored; nothing was changed, try again"
                ) from error

    async def record(
        self, thread: str, data: Sequence[EventData], *, user: str | None = None, ids: Sequence[UUID] | None = None
    ) -> SessionState:
        """Appends turns or other events that need no decision as one atomic batch (up to 1,000 events).

        user: None means that of the session. ids: the ids of the events; if the log already has one of them, nothing is
        appended, so that a call can be repeated. Raises NotFound, LogUnavailable, InvalidEvent.
        """
        copy, _ = await self._levels.current(thread)
        if not data or (ids is not None and await self._is_stored(thread, ids)):
            return _state(copy)
        events = await self._events(thread, data, user or _state(copy).user, ids)
        checked = self._levels.hot.now()
        try:
            acks = await self._append(thread, events, copy.through)
        except WrongExpectedVersion:
            await self._levels.current(thread)  # raises NotFound if the session was removed just now
            await self._append(thread, events, None)
            return await self._caught_up(thread)
        return await self._written(copy, events, acks, checked)

    async def checkpoints(self, thread: str) -> list[SegmentCheckpoint]:
        """Returns the session's checkpoints, oldest first. Raises NotFound, LogUnavailable."""
        state = await self.get(thread)
        checkpoints = await self._levels.checkpoints(thread)
        newest = checkpoints[-1].checkpoint_id if checkpoints else None
        if checkpoints is not None and newest == state.checkpoint_id:
            return checkpoints
        try:
            return await self._checkpoints_on_the_log(state)
        except LogUnavailable:
            if checkpoints is None:
                raise
            return checkpoints

    async def _change(self, thread: str, decide: Decide, user: str | None) -> SessionState:
        checked = self._levels.hot.now()
        copy, _ = await self._levels.current(thread)
        decided = decide(_state(copy))
        if not decided:
            return _state(copy)
        events = await self._events(thread, decided, user or _state(copy).user)
        acks = await self._append(thread, events, copy.through)
        return await self._written(copy, events, acks, checked)

    async def _append(self, thread: str, events: Sequence[Event], expected: int | None) -> list[Appended]:
        """Appends the events of a thread. Raises the errors of the log; after an error, the copy in memory is compared
        with the log before its next use."""
        hot = self._levels.hot
        hot.expect(event.id for event in events)
        try:
            return await self._log.append_many(events, expected, fresh=True)
        except BaseException:
            hot.doubt(thread)
            raise

    async def _written(
        self, copy: Copy, events: Sequence[Event], acks: Sequence[Appended], checked: tuple[float, int]
    ) -> SessionState:
        """Applies the events that this process has just appended to the copy, stores the result as the new copy, and
        returns its state. The events directly follow those of the copy."""
        thread = events[0].thread
        bodies = [encode(event) for event in events]
        if any(ack.duplicate for ack in acks) or any(_NUL in body for body in bodies):
            return await self._caught_up(thread)
        state = copy.state
        for body, ack in zip(bodies, acks, strict=True):
            event = decode(body)  # in the form that other readers of the log get
            state = evolve(state, Recorded(event, ack.seq, 0, event.time))
        if state is None:
            await self._levels.drop(thread)
            raise no_session(thread)
        if not state.segment_complete:
            return await self._caught_up(thread)
        await self._levels.keep(thread, Copy(state, acks[-1].seq), checked)
        return state

    async def _caught_up(self, thread: str) -> SessionState:
        """Reads the session with all events on the log, including unexpected ones, stores it as the new copy, and
        returns its state."""
        self._levels.hot.doubt(thread)
        checked = self._levels.hot.now()
        copy, _ = await self._levels.current(thread)
        await self._levels.keep(thread, copy, checked)
        return _state(copy)

    async def _checkpoints_on_the_log(self, state: SessionState) -> list[SegmentCheckpoint]:
        types = (SegmentCheckpointed.model_fields["type"].default,)
        try:
            return [
                _checkpoint(recorded)
                async for recorded in self._log.read_thread(
                    self._tenant, state.thread, max(1, state.created_seq), state.seq, types
                )
                if isinstance(recorded.event.data, SegmentCheckpointed)
                and recorded.event.data.covered_seq >= state.created_seq
            ]
        except GapInLog as error:
            raise LogUnavailable(f"cannot read the checkpoints of thread {state.thread!r}: {error}") from error

    async def _is_stored(self, thread: str, ids: Sequence[UUID]) -> bool:
        try:
            stored = await self._log.stored_ids(self._tenant, thread)
        except GapInLog as error:
            raise LogUnavailable(f"cannot look for events of thread {thread!r}: {error}; try again") from error
        return any(event_id in stored for event_id in ids)

    async def _events(
        self, thread: str, data: Sequence[EventData], user: str | None, ids: Sequence[UUID] | None = None
    ) -> list[Event]:
        """Returns events with this data. Raises ValueError if there are fewer ids than events."""
        if ids is not None and len(ids) < len(data):
            raise ValueError(f"{len(data)} events need as many ids; there are {len(ids)}")
        now = datetime.now(UTC)
        chosen = [uuid7() for _ in data] if ids is None else ids
        events = (
            Event(id=chosen[at], time=now, tenant=self._tenant, thread=thread, user=user, data=event_data)
            for at, event_data in enumerate(data)
        )
        return await self._log.screened([*events])


def _state(copy: Copy) -> SessionState:
    assert copy.state is not None
    return copy.state


def _checkpoint(recorded: Recorded) -> SegmentCheckpoint:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, SegmentCheckpointed)
    return SegmentCheckpoint(
        checkpoint_id=event.id,
        seq=recorded.seq,
        summary=data.summary,
        covered_seq=covered_by(recorded, data),
        turns_covered=data.turns_covered,
        recent_turns=data.recent_turns,
        trigger=data.trigger,
        model=data.derivation.model if data.derivation else None,
        created_at=event.time,
    )
