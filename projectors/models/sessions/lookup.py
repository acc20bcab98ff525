"""Reads a session with its current segment in one statement, and the history of its checkpoints."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.events.contracts import SegmentRules
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.forks import LINEAGE
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.sessions.state import SessionState

# The turns are one JSON value, so that the session itself is sent once; only turns of the segment are read.
# A fork's segment may begin in the shared past; the last column is then the last sequence of the shared turns.
SESSION = f"""
WITH RECURSIVE {LINEAGE}
SELECT s.tenant, s.thread_id, s.user_id, s.created_seq, s.rules, s.current_agent_key, s.last_bot_message,
  s.turn_count, CASE WHEN s.checkpoint_id IS NULL THEN 'FULL_HISTORY' ELSE s.mode END, s.summary, s.checkpoint_id,
  s.covered_seq, s.recent_turns, s.global_state, s.user_snapshot, s.updated_at, s.seq, m.turns,
  coalesce((SELECT max(through_seq) FROM lineage WHERE thread_id <> s.thread_id AND through_seq > b.after_seq), 0)
FROM sessions s CROSS JOIN LATERAL (
  SELECT CASE WHEN s.mode = 'SUMMARY_N' AND s.checkpoint_id IS NOT NULL THEN s.covered_seq ELSE s.created_seq END
    AS after_seq
) b CROSS JOIN LATERAL (
  SELECT json_agg(json_build_array(seq, event_id, role, content, time, name, coalesce(tool_calls, '[]'),
    tool_call_id, user_id, source_id, agent, model, origin) ORDER BY seq) AS turns
  FROM lineage l CROSS JOIN LATERAL (
    SELECT * FROM messages WHERE tenant = s.tenant AND thread_id = l.thread_id AND seq > b.after_seq
      AND seq <= least(s.seq, l.through_seq) OFFSET 0) t
) m
WHERE s.tenant = %(tenant)s AND s.thread_id = %(thread)s"""

_RULES, _SEGMENT = 4, 17


@dataclass(frozen=True, slots=True)
class SegmentCheckpoint:
    """A checkpoint that ended a segment. checkpoint_id: the event's id. model: None if no model wrote the summary."""

    checkpoint_id: UUID
    seq: int
    summary: str
    covered_seq: int
    turns_covered: int
    recent_turns: int
    trigger: str
    model: str | None
    created_at: datetime


async def session_state(conn: Connection, tenant: str, thread: str) -> SessionState | None:
    """Returns the session as of the last event that the projection has applied; None if there is no session."""
    rows = await conn.execute(SESSION, {"tenant": tenant, "thread": thread})
    if (row := await rows.fetchone()) is None:
        return None
    *values, shared_seq = row
    values[_RULES] = SegmentRules.model_validate(values[_RULES])
    values[_SEGMENT] = tuple(_message(turn) for turn in values[_SEGMENT] or ())
    return replace(SessionState(*values), shared_seq=shared_seq)


def _message(turn: list[Any]) -> Message:
    seq, event_id, role, content, time, *rest = turn
    return Message(seq, UUID(event_id), role, content, datetime.fromisoformat(time), *rest)


async def segment_checkpoints(conn: Connection, tenant: str, thread: str) -> list[SegmentCheckpoint]:
    """Returns the session's checkpoints since its last reset, oldest first."""
    rows = await conn.execute(
        "SELECT c.event_id, c.seq, c.summary, c.covered_seq, c.turns_covered, c.recent_turns, c.trigger, c.model, "
        "c.created_at FROM session_checkpoints c JOIN sessions s USING (tenant, thread_id) "
        "WHERE c.tenant = %s AND c.thread_id = %s AND c.seq > s.created_seq ORDER BY c.seq",
        (tenant, thread),
    )
    return [SegmentCheckpoint(*row) for row in await rows.fetchall()]
