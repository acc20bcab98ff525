"""P2 messages: the full transcript, content blocks intact, in the order of the log."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID as UUIDValue

import sqlalchemy as sa
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB, UUID

from turnlog.events.contracts import Recorded, TurnRecorded
from turnlog.projectors.changes import Change, DeleteThread, Insert, Row
from turnlog.projectors.message import Message
from turnlog.projectors.projection import REMOVALS, Projection
from turnlog.projectors.tables import metadata, timestamptz

messages = sa.Table(
    "messages",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("thread_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("event_id", UUID(as_uuid=True), nullable=False),
    sa.Column("user_id", sa.Text),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("name", sa.Text),
    sa.Column("content", JSONB, nullable=False),
    sa.Column("tool_calls", JSONB),
    sa.Column("tool_call_id", sa.Text),
    sa.Column("agent", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("tokens_in", sa.Integer),
    sa.Column("tokens_out", sa.Integer),
    sa.Column("latency_ms", sa.Float),
    sa.Column("source_id", sa.Text),
    sa.Column("time", timestamptz(), nullable=False),
)
COLUMNS = tuple(column.name for column in messages.columns)


def project(batch: Sequence[Recorded]) -> list[Change]:
    first = batch[0].event
    if first.type in REMOVALS:
        return [DeleteThread((messages,), first.tenant, first.thread)]
    return [Insert(messages, COLUMNS, [row(recorded) for recorded in batch])]


def row(recorded: Recorded) -> Row:
    event, turn = recorded.event, recorded.event.data
    assert isinstance(turn, TurnRecorded)
    return (
        event.tenant,
        event.thread,
        recorded.seq,
        event.id,
        event.user,
        turn.role,
        turn.name,
        to_json(turn.content, exclude_none=True).decode(),
        to_json(turn.tool_calls).decode() if turn.tool_calls else None,
        turn.tool_call_id,
        turn.agent,
        turn.model,
        turn.tokens_in,
        turn.tokens_out,
        turn.latency_ms,
        turn.source_id,
        event.time,
    )


MESSAGES = Projection("messages", 1, (messages,), REMOVALS | {"turn_recorded"}, project, insert_only=True)

_COLUMNS = "seq, event_id, role, content, time, name, tool_calls, tool_call_id, user_id, source_id, agent, model"
_TOOL_CALLS = _COLUMNS.split(", ").index("tool_calls")


async def thread_messages(
    conn: AsyncConnection[TupleRow],
    tenant: str,
    thread: str,
    after_seq: int = 0,
    through_seq: int | None = None,
) -> list[Message]:
    """The thread's turns after a sequence, oldest first; through_seq bounds them for a look at the past."""
    rows = await conn.execute(
        f"SELECT {_COLUMNS} FROM messages WHERE tenant = %s AND thread_id = %s AND seq > %s AND seq <= %s ORDER BY seq",
        (tenant, thread, after_seq, through_seq if through_seq is not None else 2**62),
    )
    return [_message(list(found)) for found in await rows.fetchall()]


def _message(values: list[Any]) -> Message:
    values[_TOOL_CALLS] = values[_TOOL_CALLS] or []
    return Message(*values)


async def message_by_event(
    conn: AsyncConnection[TupleRow], tenant: str, thread: str, event_id: UUIDValue
) -> Message | None:
    rows = await conn.execute(
        "SELECT seq FROM messages WHERE tenant = %s AND thread_id = %s AND event_id = %s", (tenant, thread, event_id)
    )
    if (at := await rows.fetchone()) is None:
        return None
    found = await thread_messages(conn, tenant, thread, at[0] - 1, at[0])
    return found[0]
