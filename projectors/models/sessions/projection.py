"""sessions: the short-term memory of a conversation: current agent, counts, summary, global state and user snapshot.

The row does not contain the window's messages; they are the turns of the current segment in `messages`.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB, UUID

from turnlog.events.contracts import (
    Recorded,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SessionCreated,
    SessionUpdated,
    TurnRecorded,
)
from turnlog.projectors.engine.changes import Change, Row, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz
from turnlog.projectors.models.conversation.speech import spoken_text
from turnlog.projectors.models.sessions.state import HANDLES, VERSION, SessionState, covered_by, evolve, is_answer

sessions = thread_table(
    "sessions",
    sa.Column("user_id", sa.Text),
    sa.Column(
        "created_seq",
        sa.BigInteger,
        nullable=False,
        comment="sequence of session_created; earlier turns are not part of the session",
    ),
    sa.Column("rules", JSONB, nullable=False, comment="threshold, recent turns and window, as in session_created"),
    sa.Column("current_agent_key", sa.Text),
    sa.Column("last_bot_message", sa.Text, nullable=False),
    sa.Column("turn_count", sa.Integer, nullable=False),
    sa.Column("mode", sa.Text, nullable=False, comment="FULL_HISTORY or SUMMARY_N"),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("checkpoint_id", UUID(as_uuid=True), comment="id of the event of the segment's checkpoint"),
    sa.Column("covered_seq", sa.BigInteger, nullable=False, comment="last sequence that the summary covers"),
    sa.Column(
        "recent_turns", sa.Integer, nullable=False, comment="number of covered turns that the segment keeps in full"
    ),
    sa.Column("global_state", JSONB, nullable=False),
    sa.Column("user_snapshot", JSONB, nullable=False),
    sa.Column("updated_at", timestamptz(), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the last event that changed the row"),
)
session_checkpoints = thread_table(
    "session_checkpoints",
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("event_id", UUID(as_uuid=True), nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("covered_seq", sa.BigInteger, nullable=False),
    sa.Column("turns_covered", sa.Integer, nullable=False),
    sa.Column("recent_turns", sa.Integer, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("model", sa.Text),
    sa.Column("created_at", timestamptz(), nullable=False),
)
TABLES = (sessions, session_checkpoints)
COLUMNS = tuple(column.name for column in sessions.columns)
_REPLACE = tuple((name, f"excluded.{name}") for name in COLUMNS[2:])
# The parameters of _UPDATE. None keeps the row's value.
_NOTHING = {
    "user": None,
    "agent": None,
    "answers": 0,
    "last_bot_message": None,
    "global_state": None,
    "user_snapshot": None,
    "failed": False,
    "checkpoint_id": None,
    "summary": None,
    "covered_seq": None,
    "recent_turns": None,
}
_HERE = "t.tenant = %(tenant)s AND t.thread_id = %(thread)s"
_IS_COVERED = "%(covered_seq)s::bigint >= t.created_seq"

# A thread without a session has no row, so its events change nothing.
_UPDATE = f"""
UPDATE sessions t SET
  user_id = coalesce(t.user_id, %(user)s),
  current_agent_key = coalesce(%(agent)s, t.current_agent_key),
  last_bot_message = coalesce(%(last_bot_message)s, t.last_bot_message),
  turn_count = t.turn_count + %(answers)s,
  mode = CASE WHEN %(failed)s THEN 'FULL_HISTORY' WHEN {_IS_COVERED} THEN 'SUMMARY_N' ELSE t.mode END,
  summary = CASE WHEN {_IS_COVERED} THEN %(summary)s ELSE t.summary END,
  checkpoint_id = CASE WHEN {_IS_COVERED} THEN %(checkpoint_id)s::uuid ELSE t.checkpoint_id END,
  recent_turns = CASE WHEN {_IS_COVERED} THEN %(recent_turns)s ELSE t.recent_turns END,
  covered_seq = CASE WHEN {_IS_COVERED} THEN %(covered_seq)s::bigint ELSE t.covered_seq END,
  global_state = coalesce(%(global_state)s::jsonb, t.global_state),
  user_snapshot = coalesce(%(user_snapshot)s::jsonb, t.user_snapshot),
  updated_at = %(updated_at)s,
  seq = %(seq)s
WHERE {_HERE}"""

_CHECKPOINT = f"""
INSERT INTO session_checkpoints (tenant, thread_id, seq, event_id, summary, covered_seq, turns_covered, recent_turns,
  trigger, model, created_at)
SELECT t.tenant, t.thread_id, %(seq)s, %(checkpoint_id)s, %(summary)s, %(covered_seq)s, %(turns_covered)s,
  %(recent_turns)s, %(trigger)s, %(model)s, %(updated_at)s
FROM sessions t WHERE {_HERE} AND {_IS_COVERED}"""


def project(batch: Sequence[Recorded]) -> list[Change]:
    """Returns the changes of a batch. A thread's events up to a checkpoint, a failed checkpoint or the end of the batch
    become one update of its row."""
    changes: list[Change] = []
    updates: dict[tuple[str, str], dict[str, Any]] = {}
    for recorded in batch:
        event = recorded.event
        place = (event.tenant, event.thread)
        if isinstance(event.data, SessionCreated):
            updates.pop(place, None)
            changes.append(Upsert(sessions, COLUMNS, [_row(recorded)], _REPLACE))
            continue
        update = updates.setdefault(place, {**_NOTHING, "tenant": event.tenant, "thread": event.thread})
        _add(update, recorded)
        if isinstance(event.data, SegmentCheckpointed):
            changes.append(Statement(_CHECKPOINT, [update | _about(event.data)]))
        if isinstance(event.data, SegmentCheckpointed | SegmentCheckpointFailed):
            changes.append(Statement(_UPDATE, [updates.pop(place)]))
    return [*changes, Statement(_UPDATE, list(updates.values()))] if updates else changes


def _add(update: dict[str, Any], recorded: Recorded) -> None:
    """Adds an event to the parameters of an update."""
    event = recorded.event
    update |= {"user": update["user"] or event.user, "updated_at": event.time, "seq": recorded.seq}
    match event.data:
        case TurnRecorded() as turn:
            update["agent"] = update["agent"] if turn.agent is None else turn.agent
            if is_answer(turn):
                update |= {"answers": update["answers"] + 1, "last_bot_message": spoken_text(turn)}
        case SessionUpdated() as changed:
            parts = {"agent": changed.current_agent_key, "global_state": _json(changed.global_state)}
            parts["user_snapshot"] = _json(changed.user_snapshot)
            update |= {name: value for name, value in parts.items() if value is not None}
        case SegmentCheckpointed(summary=summary, recent_turns=recent_turns) as checkpoint:
            update |= {"checkpoint_id": event.id, "covered_seq": covered_by(recorded, checkpoint)}
            update |= {"summary": summary, "recent_turns": recent_turns}
        case SegmentCheckpointFailed():
            update["failed"] = True


def _about(checkpoint: SegmentCheckpointed) -> dict[str, Any]:
    """Returns the parameters of _CHECKPOINT that are not parameters of _UPDATE."""
    model = checkpoint.derivation.model if checkpoint.derivation else None
    return {"turns_covered": checkpoint.turns_covered, "trigger": checkpoint.trigger, "model": model}


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else to_json(value).decode()


def _row(created: Recorded) -> Row:
    state = evolve(None, created)
    assert isinstance(state, SessionState)
    return (
        state.tenant,
        state.thread,
        state.user,
        state.created_seq,
        state.rules.model_dump_json(),
        state.current_agent_key,
        state.last_bot_message,
        state.turn_count,
        state.mode,
        state.summary,
        state.checkpoint_id,
        state.covered_seq,
        state.recent_turns,
        to_json(state.global_state).decode(),
        to_json(state.user_snapshot).decode(),
        state.updated_at,
        state.seq,
    )


SESSIONS = Projection("sessions", VERSION, TABLES, HANDLES, project)
