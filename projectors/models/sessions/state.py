"""Computes the session of a thread from its events. Pure.

The row in Postgres, the copies in memory and in the bucket, and a fold of the log all yield the same value.
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
    """One session. seq: the sequence of the last applied event. created_seq: turns after this sequence belong to the
    session.

    covered_seq: the last sequence that the summary covers; equals created_seq without a summary.
    segment: the turns of the current segment, oldest first: the turns after covered_seq in mode SUMMARY_N, else all
    turns of the session. segment_complete: False if the segment begins before the turns that are loaded, so that it
    must be read again. shared_seq: turns of the segment up to this sequence belong to the threads that this thread was
    forked from; 0: none do.
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

        Old data in mode SUMMARY_N without a checkpoint is treated as full history.
        """
        is_summary = self.mode == "SUMMARY_N" and self.checkpoint_id is not None
        return self.covered_seq if is_summary else self.created_seq


def evolve(state: SessionState | None, recorded: Recorded) -> SessionState | None:
    """Returns the session after the next event of its thread; None if there is no session.

    Events that sessions do not handle change nothing. A checkpoint of turns before a reset has no effect.
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
    """Returns the last sequence that a summary covers; a summary never covers turns after its own event."""
    return min(data.covered_seq, recorded.seq)


def _segmented(state: SessionState, **changed: Any) -> SessionState:
    """Returns the session with the changed fields, and drops turns that are no longer in its segment. segment_complete
    becomes False if the segment now begins before the loaded turns."""
    new: SessionState = replace(state, **changed)
    start = new.segment_after
    return replace(
        new,
        segment=tuple(message for message in state.segment if message.seq > start),
        segment_complete=state.segment_complete and start >= state.segment_after,
        shared_seq=state.shared_seq if state.shared_seq > start else 0,
    )


def message_of(recorded: Recorded, turn: TurnRecorded) -> Message:
    """Returns the turn in the form of a row of `messages`."""
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
    """Returns whether the turn is an answer of the assistant, that is, contains no tool calls."""
    blocks = () if isinstance(turn.content, str) else turn.content
    return turn.role == "assistant" and not turn.tool_calls and not any(isinstance(b, ToolUseBlock) for b in blocks)


def turns_of(messages: Iterable[Message]) -> list[tuple[Message, ...]]:
    """Groups messages into turns of the conversation: the question, the tool rounds and the answer.

    A turn begins at a user message that does not directly follow another user message, and at an assistant message if
    the turn before is already answered. Tool results stay with their calls, even if a user message contains them.
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
    """Returns whether a message contains only tool results; histories in Anthropic's format have them in user
    messages."""
    if isinstance(message.content, str) or not message.content:
        return False
    return all(block.get("type") == "tool_result" for block in message.content)
