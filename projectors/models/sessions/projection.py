"""P9 sessions: the short-term memory of a conversation (B): meta, flow, message context, global state, user.

The window's messages are no part of the row: they are the turns of the current segment in `messages`.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB, UUID

from turnlog.events.contracts import Recorded
from turnlog.projectors.engine.changes import Change, Row, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import metadata, timestamptz
from turnlog.projectors.models.sessions.state import HANDLES, VERSION, SessionState, evolve
from turnlog.projectors.models.sessions.steps import Step, rounds

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("thread_id", sa.Text, primary_key=True),
    sa.Column("user_id", sa.Text),
    sa.Column("created_seq", sa.BigInteger, nullable=False, comment="of session_created; earlier turns are out"),
    sa.Column("rules", JSONB, nullable=False, comment="threshold, recent turns, window: as session_created set them"),
    sa.Column("current_agent_key", sa.Text),
    sa.Column("last_bot_message", sa.Text, nullable=False),
    sa.Column("turn_count", sa.Integer, nullable=False),
    sa.Column("mode", sa.Text, nullable=False, comment="FULL_HISTORY or SUMMARY_N"),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("checkpoint_id", UUID(as_uuid=True), comment="event of the segment's checkpoint"),
    sa.Column("covered_seq", sa.BigInteger, nullable=False, comment="the summary covers turns up to here"),
    sa.Column("recent_turns", sa.Integer, nullable=False, comment="covered turns that the segment keeps in full"),
    sa.Column("global_state", JSONB, nullable=False),
    sa.Column("user_snapshot", JSONB, nullable=False),
    sa.Column("updated_at", timestamptz(), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="last event that is in the row"),
)
session_checkpoints = sa.Table(
    "session_checkpoints",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("thread_id", sa.Text, primary_key=True),
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

# The types of a step's columns, in the order of session_steps.Step.columns().
_STEPS = """unnest(
  %(tenant)s::text[], %(thread)s::text[], %(user)s::text[], %(agent)s::text[], %(answers)s::int[],
  %(last_bot_message)s::text[], %(global_state)s::jsonb[], %(user_snapshot)s::jsonb[], %(updated_at)s::timestamptz[],
  %(seq)s::bigint[], %(failed)s::bool[], %(checkpoint_id)s::uuid[], %(summary)s::text[], %(covered_seq)s::bigint[],
  %(turns_covered)s::int[], %(recent_turns)s::int[], %(trigger)s::text[], %(model)s::text[]
) AS d (tenant, thread_id, user_id, agent, answers, last_bot_message, global_state, user_snapshot, updated_at,
  seq, failed, checkpoint_id, summary, covered_seq, turns_covered, recent_turns, trigger, model)"""

# A thread without a session has no row, so that its events change nothing.
_UPDATE = f"""
UPDATE sessions t SET
  user_id = coalesce(t.user_id, d.user_id),
  current_agent_key = coalesce(d.agent, t.current_agent_key),
  last_bot_message = coalesce(d.last_bot_message, t.last_bot_message),
  turn_count = t.turn_count + d.answers,
  mode = CASE WHEN d.failed THEN 'FULL_HISTORY' WHEN d.covered_seq >= t.created_seq THEN 'SUMMARY_N' ELSE t.mode END,
  summary = CASE WHEN d.covered_seq >= t.created_seq THEN d.summary ELSE t.summary END,
  checkpoint_id = CASE WHEN d.covered_seq >= t.created_seq THEN d.checkpoint_id ELSE t.checkpoint_id END,
  recent_turns = CASE WHEN d.covered_seq >= t.created_seq THEN d.recent_turns ELSE t.recent_turns END,
  covered_seq = CASE WHEN d.covered_seq >= t.created_seq THEN d.covered_seq ELSE t.covered_seq END,
  global_state = coalesce(d.global_state, t.global_state),
  user_snapshot = coalesce(d.user_snapshot, t.user_snapshot),
  updated_at = d.updated_at,
  seq = d.seq
FROM {_STEPS}
WHERE t.tenant = d.tenant AND t.thread_id = d.thread_id"""

_CHECKPOINTS = f"""
INSERT INTO session_checkpoints (tenant, thread_id, seq, event_id, summary, covered_seq, turns_covered, recent_turns,
  trigger, model, created_at)
SELECT d.tenant, d.thread_id, d.seq, d.checkpoint_id, d.summary, d.covered_seq, d.turns_covered, d.recent_turns,
  d.trigger, d.model, d.updated_at
FROM {_STEPS}
JOIN sessions t ON t.tenant = d.tenant AND t.thread_id = d.thread_id
WHERE d.covered_seq >= t.created_seq"""


def project(batch: Sequence[Recorded]) -> list[Change]:
    """Folded per thread to steps; each round of steps has at most one of a thread, so that a statement takes all."""
    changes: list[Change] = []
    for steps in rounds(batch):
        changes += _changes(steps)
    return changes


def _changes(steps: Sequence[Step]) -> list[Change]:
    begun = [_row(step.created) for step in steps if step.created is not None]
    going_on = [step for step in steps if step.created is None]
    ended = [step for step in going_on if step.checkpoint is not None]
    changes: list[Change] = []
    if begun:
        changes.append(Upsert(sessions, COLUMNS, begun, _REPLACE))
    if ended:
        changes.append(Statement(_CHECKPOINTS, [Step.columns(ended)]))
    if going_on:
        changes.append(Statement(_UPDATE, [Step.columns(going_on)]))
    return changes


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
