"""Reads the events of a thread that are newer than a copy of its session, and applies them to the copy."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from turnlog.agent.conversations.sessions.lineage import lineage
from turnlog.events.contracts import REMOVALS, Recorded, TurnRecorded
from turnlog.events.errors import FutureEventVersion, GapInLog, LogUnavailable, cause
from turnlog.events.log import Log
from turnlog.events.stored import Stored
from turnlog.events.stream import DUPLICATE_WINDOW_S
from turnlog.events.subjects import STREAM, parse_stored, thread_filter
from turnlog.projectors.engine.incoming import incoming
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.sessions.state import HANDLES, SessionState, evolve, message_of

# Seconds to wait for one request, and for all events of a thread.
PATIENCE_S, LONG_PATIENCE_S = 1.0, 30.0
# The server refuses a repeated event within its deduplication window; the margin allows for clock differences.
SURELY_NEW = timedelta(seconds=DUPLICATE_WINDOW_S - 20)


@dataclass(frozen=True, slots=True)
class Copy:
    """A session as of the thread's sequence `through`. state: None if the session was removed."""

    state: SessionState | None
    through: int

    @property
    def borrows(self) -> bool:
        """True if the copy contains turns of other threads. Such a copy is not kept, because it would not notice their
        removal."""
        return self.state is not None and self.state.shared_seq > 0

    @property
    def whole(self) -> bool:
        return self.state is None or self.state.segment_complete


async def follow(log: Log, tenant: str, thread: str, copy: Copy) -> Copy | None:
    """Returns the copy with all events of its thread applied; None if it was made from another log, or if its segment
    must be read again.

    Raises LogUnavailable after PATIENCE_S without the thread's last sequence, or LONG_PATIENCE_S without its events,
    and FutureEventVersion if there is an event of a newer turnlog.
    """
    head = await thread_head(log, tenant, thread)
    if head == copy.through:
        return copy if copy.whole else None
    if head < copy.through:
        return None
    known = {message.event_id for message in copy.state.segment} if copy.state else set()
    tail = await _tail(log, tenant, thread, copy.through, head)
    updated = Copy(_fold(copy.state, await _first_ones(log, tenant, thread, tail, known)), head)
    return updated if updated.whole else None


async def from_log(log: Log, tenant: str, thread: str) -> Copy | None:
    """Returns the session, read from its beginning in the log; None if there is none.

    Raises the errors of `follow`.
    """
    began = await _last(log, thread_filter(tenant, thread, "session_created"))
    if not began:
        return None
    head = await thread_head(log, tenant, thread)
    tail = await _tail(log, tenant, thread, began - 1, head)
    events = await _first_ones(log, tenant, thread, tail, set())
    if not events or events[0].seq != began:  # a repeated session_created does not restart the session
        events = _each_once(await _tail(log, tenant, thread, 0, head))
    state = _fold(None, events)
    if state and not state.segment_complete and state.segment_after < began:  # turns precede the session
        events = _each_once(await _tail(log, tenant, thread, state.segment_after, head))
        return Copy(await _with_shared_past(log, _refilled(state, events)), head)
    return Copy(_refilled(state, events), head) if state else None


async def _with_shared_past(log: Log, state: SessionState) -> SessionState:
    """Returns the state with the shared turns, because the segment of a fork begins with turns of its parents unless a
    summary covers all of them."""
    forked = await _last(log, thread_filter(state.tenant, state.thread, "thread_forked"))
    if forked <= state.segment_after:
        return state
    async with _soon(f"cannot read the shared past of thread {state.thread!r}"):
        past = await lineage(log, state.tenant, state.thread, forked)
    if past.shared_seq <= state.segment_after:
        return state
    shared = [turn for turn in past.turns if turn.seq > state.segment_after and turn.event.thread != state.thread]
    return replace(state, segment=(*_messages(shared), *state.segment), shared_seq=past.shared_seq)


async def thread_head(log: Log, tenant: str, thread: str) -> int:
    """Returns the thread's last sequence like Log.thread_head, but with a short time limit. Raises LogUnavailable."""
    return await _last(log, thread_filter(tenant, thread))


async def _last(log: Log, subject: str) -> int:
    if not log.nc.is_connected:
        raise LogUnavailable("NATS is not connected; turnlog keeps trying to reconnect. Is the server up?")
    async with _soon(f"cannot ask for the last of {subject}", PATIENCE_S):
        try:
            return int((await log.nc.jetstream().get_last_msg(STREAM, subject)).seq or 0)
        except NotFoundError:
            return 0


@asynccontextmanager
async def _soon(failure: str, patience_s: float = LONG_PATIENCE_S) -> AsyncIterator[None]:
    """Raises LogUnavailable, with the failure in its message, if NATS fails or takes too long."""
    try:
        async with asyncio.timeout(patience_s):
            yield
    except (NatsError, OSError, TimeoutError, GapInLog) as error:
        raise LogUnavailable(f"{failure}: NATS does not answer ({cause(error)}); try again") from error


def _fold(state: SessionState | None, events: Sequence[Recorded]) -> SessionState | None:
    for recorded in events:
        state = evolve(state, recorded)
    return state


def _refilled(state: SessionState, events: Sequence[Recorded]) -> SessionState:
    """Returns the session with its complete segment, filled from the events. A segment is incomplete if it begins
    before the session, or includes turns again that a summary had covered."""
    if state.segment_complete:
        return state
    removed = max((recorded.seq for recorded in events if recorded.event.type in REMOVALS), default=0)
    after = max(state.segment_after, removed)
    segment = _messages(recorded for recorded in events if recorded.seq > after)
    return replace(state, segment=segment, segment_complete=True)


def _messages(events: Iterable[Recorded]) -> tuple[Message, ...]:
    turns = [(recorded, recorded.event.data) for recorded in events]
    return tuple(message_of(recorded, data) for recorded, data in turns if isinstance(data, TurnRecorded))


async def _first_ones(log: Log, tenant: str, thread: str, tail: Sequence[Recorded], known: set[UUID]) -> list[Recorded]:
    """Returns the tail without repeated events, which the read models ignore too.

    Only an event that was stored after the server's deduplication window can be a repetition; only then are the
    thread's ids looked up.
    """
    events = _each_once([recorded for recorded in tail if recorded.event.id not in known])
    if all(recorded.stored_at - recorded.event.time < SURELY_NEW for recorded in events):
        return events
    async with _soon(f"cannot look for repeated events of thread {thread!r}"):
        first = await log.stored_ids(tenant, thread)
    return [recorded for recorded in events if first.get(recorded.event.id) == recorded.seq]


def _each_once(events: Sequence[Recorded]) -> list[Recorded]:
    first: dict[UUID, Recorded] = {}
    for recorded in events:
        first.setdefault(recorded.event.id, recorded)
    return list(first.values())


async def _tail(log: Log, tenant: str, thread: str, after: int, through: int) -> list[Recorded]:
    """Returns the events that concern sessions, after one sequence and up to another, in order."""
    async with _soon(f"cannot read thread {thread!r}"):
        stored_events = [stored async for stored in log.read_stored(tenant, thread, after + 1, through)]
    ours = [_decoded(stored, thread) for stored in stored_events if parse_stored(stored.subject).type in HANDLES]
    return [recorded for recorded in ours if recorded is not None]


def _decoded(stored: Stored, thread: str) -> Recorded | None:
    """Returns the event; None if it cannot be decoded, so that the projection parks it.

    Raises FutureEventVersion for an event of a newer turnlog. If it were skipped, a later change could undo it.
    """
    result = incoming(stored)
    if result.error.startswith(FutureEventVersion.code):
        raise FutureEventVersion(f"the session of thread {thread!r} stops at sequence {stored.seq}: {result.error}")
    return result.recorded
