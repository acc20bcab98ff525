"""The session of a thread as a value, and how events make it. Pure.

The row in Postgres, the copies in memory and in the bucket, and a fold of the log all give this value.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic_core import to_jsonable_python

from turnlog.events.contracts import (
    REMOVALS,
    Recorded,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
    SessionCreated,
    SessionUpdated,
    ToolUseBlock,
    TurnRecorded,
)
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.speech import spoken_text

Mode = Literal["FULL_HISTORY", "SUMMARY_N"]
VERSION = 1
HANDLES = REMOVALS | {
    "session_created",
    "session_updated",
    "segment_checkpoint_requested",
    "segment_checkpointed",
    "segment_checkpoint_failed",
    "turn_recorded",
}


@dataclass(frozen=True, slots=True)
class SessionState:
    """One session. seq: the last event that is in it; created_seq: where it began (the last reset).

    covered_seq: the summary covers the turns of the session up to here; created_seq when there is none.
    segment: turns of the current segment, oldest first: those after covered_seq in mode SUMMARY_N, else all.
    segment_complete: False when the segment begins earlier than the turns at hand, so that it must be read again.
    shared_seq: turns of the segment up to here are those of the threads that this one is a fork of; 0: it has none.
    """

    tenant: str
    thread: str
    user: str | None
    created_seq: int
    rules: SegmentRules
    current_agent_key: str | None
    last_bot_message: str
    turn_count: int
    mode: Mode
    summary: str
    checkpoint_id: UUID | None
    covered_seq: int
    recent_turns: int
    global_state: dict[str, Any]
    user_snapshot: dict[str, Any]
    updated_at: datetime
    seq: int
    segment: tuple[Message, ...]
    segment_complete: bool = True
    shared_seq: int = 0

    @property
    def segment_after(self) -> int:
        """Returns the sequence after which the thread's turns belong to the segment.

        Old data in mode SUMMARY_N without a checkpoint has its full history.
        """
        is_summary = self.mode == "SUMMARY_N" and self.checkpoint_id is not None
        return self.covered_seq if is_summary else self.created_seq


def evolve(state: SessionState | None, recorded: Recorded) -> SessionState | None:
    """Returns the session after one more event of its thread, in order; None if there is no session.

    Other events of the thread leave it as it is. A checkpoint of turns before a reset has no effect.
    """
    event, data = recorded.event, recorded.event.data
    if event.type in REMOVALS:
        return None
    if isinstance(data, SessionCreated):
        return _created(recorded, data)
    if state is None or event.type not in HANDLES:
        return state
    touched = replace(state, user=state.user or event.user, updated_at=event.time, seq=recorded.seq)
    match data:
        case TurnRecorded():
            return _turned(touched, recorded, data)
        case SessionUpdated():
            return _updated(touched, data)
        case SegmentCheckpointed(covered_seq=covered) if covered >= state.created_seq:
            return _checkpointed(touched, recorded, data)
        case SegmentCheckpointFailed():
            return _segmented(touched, mode="FULL_HISTORY")
        case _:
            assert isinstance(data, SegmentCheckpointed | SegmentCheckpointRequested)
            return touched


def _created(recorded: Recorded, data: SessionCreated) -> SessionState:
    event, seq = recorded.event, recorded.seq
    begins = seq if data.after_seq is None else min(data.after_seq, seq)
    return SessionState(
        tenant=event.tenant,
        thread=event.thread,
        user=event.user,
        created_seq=begins,
        rules=data.rules,
        current_agent_key=data.agent,
        last_bot_message=data.last_bot_message,
        turn_count=data.turn_count,
        mode="FULL_HISTORY",
        summary="",
        checkpoint_id=None,
        covered_seq=begins,
        recent_turns=0,
        global_state={},
        user_snapshot=data.user_snapshot or {},
        updated_at=event.time,
        seq=seq,
        segment=(),
        segment_complete=begins == seq,
    )


def _turned(state: SessionState, recorded: Recorded, turn: TurnRecorded) -> SessionState:
    answer = is_answer(turn)
    return replace(
        state,
        current_agent_key=state.current_agent_key if turn.agent is None else turn.agent,
        last_bot_message=spoken_text(turn) if answer else state.last_bot_message,
        turn_count=state.turn_count + answer,
        segment=(*state.segment, message_of(recorded, turn)),
    )


def _updated(state: SessionState, data: SessionUpdated) -> SessionState:
    return replace(
        state,
        current_agent_key=state.current_agent_key if data.current_agent_key is None else data.current_agent_key,
        global_state=state.global_state if data.global_state is None else data.global_state,
        user_snapshot=state.user_snapshot if data.user_snapshot is None else data.user_snapshot,
    )


def _checkpointed(state: SessionState, recorded: Recorded, data: SegmentCheckpointed) -> SessionState:
    return _segmented(
        state,
        mode="SUMMARY_N",
        summary=data.summary,
        checkpoint_id=recorded.event.id,
        covered_seq=covered_by(recorded, data),
        recent_turns=data.recent_turns,
    )


def covered_by(recorded: Recorded, data: SegmentCheckpointed) -> int:
    """Returns the sequence that a summary covers. It never covers turns after it, whatever its event says."""
    return min(data.covered_seq, recorded.seq)


def _segmented(state: SessionState, **changed: Any) -> SessionState:
    """Returns the session with another beginning of its segment, which may lie before the turns at hand."""
    new: SessionState = replace(state, **changed)
    start = new.segment_after
    return replace(
        new,
        segment=tuple(message for message in state.segment if message.seq > start),
        segment_complete=state.segment_complete and start >= state.segment_after,
        shared_seq=state.shared_seq if state.shared_seq > start else 0,
    )


def message_of(recorded: Recorded, turn: TurnRecorded) -> Message:
    """Returns the turn in the form that `messages` has."""
    event = recorded.event
    return Message(
        seq=recorded.seq,
        event_id=event.id,
        role=turn.role,
        content=to_jsonable_python(turn.content, exclude_none=True),
        time=event.time,
        name=turn.name,
        tool_calls=to_jsonable_python(turn.tool_calls),
        tool_call_id=turn.tool_call_id,
        user=event.user,
        source_id=turn.source_id,
        agent=turn.agent,
        model=turn.model,
        origin=turn.of(event.user).origin or "person",
    )


def is_answer(turn: TurnRecorded) -> bool:
    """Returns whether the assistant said it, unlike the calls it made before the answer."""
    blocks = () if isinstance(turn.content, str) else turn.content
    return turn.role == "assistant" and not turn.tool_calls and not any(isinstance(b, ToolUseBlock) for b in blocks)


def turns_of(messages: Iterable[Message]) -> list[tuple[Message, ...]]:
    """Returns messages as turns of the conversation: what was asked, the tool rounds and the answer.

    A turn begins at a user message that does not directly follow another, and at an assistant message when the
    turn before is answered already. Tool results stay with their calls, also those in user messages.
    """
    turns: list[list[Message]] = []
    for message in messages:
        if not turns or _begins_turn(turns[-1], message):
            turns.append([])
        turns[-1].append(message)
    return [tuple(turn) for turn in turns]


def _begins_turn(turn: list[Message], message: Message) -> bool:
    if message.role == "tool" or _only_tool_results(message):
        return False
    if message.role == "assistant":
        return any(_answers(said) for said in turn)
    return any(said.role not in ("user", "system") for said in turn)


def _answers(message: Message) -> bool:
    blocks = () if isinstance(message.content, str) else message.content
    calls = message.tool_calls or any(block.get("type") == "tool_use" for block in blocks)
    return message.role == "assistant" and not calls


def _only_tool_results(message: Message) -> bool:
    """Returns whether a message has only tool results; Anthropic-style histories carry them in user turns."""
    if isinstance(message.content, str) or not message.content:
        return False
    return all(block.get("type") == "tool_result" for block in message.content)
