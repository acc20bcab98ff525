"""Implements the five operations of docs/short-term-memory.md over sessions that are stored as events.

The history of a session is cut into segments; a checkpoint ends a segment with a summary. Checkpoints are not made
here: a query that finds the threshold crossed requests one on the log, and a reactor makes it while the answer is being
made.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Self
from uuid import NAMESPACE_OID, UUID, uuid5

from turnlog.agent import metrics
from turnlog.agent.context import counter_for
from turnlog.agent.conversations.sessions.checkpoint import manual_checkpoint
from turnlog.agent.conversations.sessions.history import History, build_history
from turnlog.agent.conversations.sessions.levels import no_session
from turnlog.agent.conversations.sessions.lineage import Lineage, lineage
from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.agent.conversations.sessions.value import (
    InvalidMemoryRequest,
    MemoryContext,
    MemoryCreateRequest,
    MemoryQueryRequest,
    MemoryWriteRequest,
    MemoryWriteResult,
    SessionValue,
    mode_of,
    parts_changed,
    session_value,
    summary_of,
    turns_written,
)
from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.events.contracts import Event, EventData, SegmentCheckpointRequested, SegmentRules, SessionCreated
from turnlog.events.errors import NotFound, TurnlogError, WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.subjects import check_conversation
from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint
from turnlog.projectors.models.sessions.state import SessionState, turns_of

logger = logging.getLogger("turnlog.sessions")
SOURCE = "turnlog/sessions"
CLOSING_S = 2.0


class ShortTermMemory:
    """The memory of one tenant's conversations: `async with ShortTermMemory(log, pool, settings) as memory`.

    Every method except create raises NotFound for a conversation that has no session, or that belongs to another user
    than the given one. Every method raises LogUnavailable if no level can answer.
    """

    def __init__(self, log: Log, pool: Pool, settings: Settings, tenant: str | None = None) -> None:
        """tenant: None means that of the settings. Tokens are counted with the encoding of the settings' model."""
        self.tenant = tenant or settings.tenant
        self._log, self._settings = log, settings
        self._sessions = Sessions(log, pool, self.tenant, metrics.session_read)
        self._counter = counter_for(settings.model)
        self._asking: dict[UUID, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        await self._sessions.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits at most CLOSING_S for pending checkpoint requests. If a request is lost, the next query repeats it."""
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=CLOSING_S)
        for task in list(self._asking.values()):
            task.cancel()
        await self._sessions.close()

    async def create(self, request: MemoryCreateRequest) -> SessionValue:
        """Begins a session, or restarts an existing one: earlier turns are not part of it.

        The session of a conversation that already has turns, such as an imported one, begins with the complete history
        in the mode FULL_HISTORY; that of a fork includes the turns of its parents. Raises NotFound if the conversation
        belongs to another user, InvalidToken for an invalid id.
        """
        thread, user = check_conversation(request.conversation_id), request.user_id

        def begin(state: SessionState) -> list[EventData]:
            _check_user(thread, state.user, user)
            return [self._created(request, Lineage())]

        while True:
            # Read before the session, so that a later event is noticed.
            head = await self._log.thread_head(self.tenant, thread)
            if await self._found(thread) is not None:
                return session_value(await self._sessions.change(thread, begin, user=user))
            older = await lineage(self._log, self.tenant, thread, head) if head else Lineage()
            _check_user(thread, older.user, user)
            created = self._created(request, older)
            # Another writer may have added a turn or created the session in between.
            with contextlib.suppress(WrongExpectedVersion):
                owner = user or older.user
                return session_value(await self._sessions.create(thread, created, user=owner, expected=head))

    async def get(self, conversation_id: str) -> SessionValue:
        """Returns the present session."""
        return session_value(await self._session(conversation_id))

    async def query_memory_context(self, request: MemoryQueryRequest) -> MemoryContext:
        """Returns the history for a prompt, and whether a summary is due.

        Crossing the threshold requests a checkpoint in the background, once per state of the conversation. A failed
        request does not fail the query; the next query repeats it.
        """
        started = time.perf_counter()
        state = await self._session(request.conversation_id, request.patient_id, request.enterprise_id)
        rules = self._rules(request, state.rules)
        made = build_history(summary_of(state), turns_of(state.segment), request.query, rules, self._counter)
        if made.should_checkpoint:
            self._ask(state, rules, made)
        context = MemoryContext(
            conversation_id=state.thread,
            mode=mode_of(state),
            session=session_value(state, rules.recent_turns),
            history=made.history,
            full_history=made.full_history,
            estimated_tokens=made.tokens,
            token_ratio=made.ratio,
            should_checkpoint_summary=made.should_checkpoint,
        )
        metrics.TOKEN_RATIO.observe(made.ratio)
        metrics.QUERY_SECONDS.observe(time.perf_counter() - started)
        return context

    async def write_turn(self, request: MemoryWriteRequest) -> MemoryWriteResult:
        """Appends the question and the answer atomically.

        Repeating a call with the same turn_id changes nothing. Raises InvalidMemoryRequest when both are empty.
        """
        turns = turns_written(request)
        ids = [uuid5(request.turn_id, turn.role) for turn in turns] if request.turn_id else None
        owner = (await self._session(request.conversation_id)).user
        _check_user(request.conversation_id, owner, request.user_id)
        state = await self._sessions.record(request.conversation_id, turns, user=request.user_id, ids=ids)
        return MemoryWriteResult(
            conversation_id=state.thread, mode=mode_of(state), updated_at=int(state.updated_at.timestamp())
        )

    async def checkpoint(self, conversation_id: str, summary: str, recent_turns: int | None = None) -> SessionValue:
        """Ends the segment with the caller's summary.

        The last recent_turns turns stay complete (None means the session's rule). The summary must cover every turn
        before them; with 0, it must cover all turns. Raises InvalidMemoryRequest for an empty summary, one that reaches
        the session's threshold, or a negative recent_turns.
        """
        if recent_turns is not None and recent_turns < 0:
            raise InvalidMemoryRequest(
                f"recent_turns is {recent_turns}; give 0 or more, or None for the session's rule"
            )
        size = self._counter.text(summary)

        def decide(state: SessionState) -> list[EventData]:
            limit = int(state.rules.token_threshold_ratio * state.rules.model_context_window)
            if not summary.strip() or size >= limit:
                raise InvalidMemoryRequest(
                    f"a summary must not be empty and must have fewer than {limit:,} tokens; this one has {size:,}"
                )
            kept = state.rules.recent_turns if recent_turns is None else recent_turns
            return [manual_checkpoint(state, summary.strip(), kept)]

        state = await self._sessions.change(conversation_id, decide)
        metrics.checkpoint_ended("manual", "made")
        metrics.SUMMARY_TOKENS.observe(size)
        return session_value(state)

    async def reset(self, conversation_id: str) -> SessionValue:
        """Restarts the session with the same user, rules and user snapshot. The log and the transcript stay
        unchanged."""

        def decide(state: SessionState) -> list[EventData]:
            return [SessionCreated(rules=state.rules, user_snapshot=state.user_snapshot)]

        return session_value(await self._sessions.change(conversation_id, decide))

    async def checkpoints(self, conversation_id: str) -> list[SegmentCheckpoint]:
        """Returns the session's checkpoints, oldest first."""
        return await self._sessions.checkpoints(conversation_id)

    async def update(self, conversation_id: str, change: Callable[[SessionValue], SessionValue]) -> SessionValue:
        """Changes the current agent, the global state or the user snapshot; no concurrent change is lost.

        change: takes the current value and returns the new one; it is called again after a concurrent change. Raises
        InvalidMemoryRequest if it changes a part that is derived from the conversation.
        """

        def decide(state: SessionState) -> list[EventData]:
            before = session_value(state)
            return parts_changed(before, change(before))

        return session_value(await self._sessions.change(conversation_id, decide))

    def _created(self, request: MemoryCreateRequest, older: Lineage) -> SessionCreated:
        snapshot, answers = request.user_snapshot, older.answers
        return SessionCreated(
            rules=self._rules(request, None),
            agent=request.agent_code,
            user_snapshot=snapshot.model_dump(mode="json") if snapshot else None,
            after_seq=older.after_seq,
            turn_count=len(answers),
            last_bot_message=answers[-1] if answers else "",
        )

    def _rules(self, request: MemoryCreateRequest | MemoryQueryRequest, own: SegmentRules | None) -> SegmentRules:
        """Returns the rules: values of the request take precedence over those of the session, and these over the
        settings."""
        settings = self._settings
        default = own or SegmentRules(
            token_threshold_ratio=settings.token_threshold_ratio,
            recent_turns=settings.recent_turns,
            model_context_window=settings.session_window,
        )
        asked = {name: getattr(request, name) for name in SegmentRules.model_fields}
        return default.model_copy(update={name: value for name, value in asked.items() if value is not None})

    async def _session(self, conversation_id: str, user: str | None = None, tenant: str | None = None) -> SessionState:
        if tenant is not None and tenant != self.tenant:
            raise no_session(conversation_id)
        state = await self._found(conversation_id)
        if state is None or (user is not None and user != state.user):
            raise no_session(conversation_id)
        return state

    async def _found(self, conversation_id: str) -> SessionState | None:
        try:
            return await self._sessions.get(conversation_id)
        except NotFound:
            return None

    def _ask(self, state: SessionState, rules: SegmentRules, made: History) -> None:
        """Requests a checkpoint. Does nothing for a segment with only one turn, which leaves nothing to summarise."""
        if len(turns_of(state.segment)) < 2:
            return
        last = state.segment[-1].seq
        segment = state.checkpoint_id or state.created_seq
        event_id = uuid5(NAMESPACE_OID, f"segment_checkpoint_requested/{self.tenant}/{state.thread}/{segment}/{last}")
        if event_id in self._asking:
            return
        event = Event(
            id=event_id,
            source=SOURCE,
            tenant=self.tenant,
            thread=state.thread,
            user=state.user,
            data=SegmentCheckpointRequested(
                rules=rules, estimated_tokens=made.tokens, token_ratio=made.ratio, through_seq=state.seq
            ),
        )
        task = asyncio.create_task(self._append(event))
        self._asking[event_id] = task
        task.add_done_callback(lambda _: self._asking.pop(event_id, None))

    async def _append(self, event: Event) -> None:
        try:
            await self._log.append(event)
        except TurnlogError as error:
            logger.warning("a checkpoint of %s could not be requested: %s", event.thread, error)


def _check_user(conversation_id: str, owner: str | None, user: str | None) -> None:
    if user is not None and owner is not None and user != owner:
        raise no_session(conversation_id)
