"""messages: the full transcript in the order of the log, with unchanged content blocks."""

from collections.abc import Sequence

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB, UUID

from turnlog.events.contracts import (
    ARCHIVING,
    REMOVALS,
    Recorded,
    ThreadArchived,
    ThreadForked,
    ThreadRestored,
    TurnRecorded,
)
from turnlog.events.local_time import offset_of
from turnlog.projectors.engine.changes import Change, DeleteThread, Insert, Row, Statement
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz, utc_offset_column
from turnlog.projectors.models.conversation.restored import cleared_before, restored_events

messages = thread_table(
    "messages",
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
    sa.Column(
        "origin", sa.Text, nullable=False, comment="source of the words: person, participant, tool, program or quoted"
    ),
    utc_offset_column(),
)
# For each batch of turns a query compares the smallest and the largest name of a user's turns in the thread: if they
# differ, several speakers share the user id.
sa.Index(
    "messages_names",
    *(messages.c[name] for name in ("tenant", "thread_id", "user_id", "name")),
    postgresql_where=sa.text("role = 'user' AND name IS NOT NULL"),
)
thread_forks = thread_table(
    "thread_forks",
    sa.Column("parent_id", sa.Text, nullable=False),
    sa.Column("at_seq", sa.BigInteger, nullable=False, comment="last sequence of the parent that belongs to the fork"),
)
COLUMNS = tuple(column.name for column in messages.columns)

# Only the first fork event of a thread is used.
_FORK = """
INSERT INTO thread_forks (tenant, thread_id, parent_id, at_seq)
VALUES (%(tenant)s, %(thread)s, %(parent)s, %(at_seq)s) ON CONFLICT DO NOTHING"""


def project(batch: Sequence[Recorded]) -> list[Change]:
    first = batch[0].event
    if isinstance(first.data, ThreadArchived):
        return [DeleteThread((messages,), first.tenant, first.thread)]
    if isinstance(first.data, ThreadRestored):
        back = restored_events(batch[0], frozenset({"turn_recorded"}))
        return [*cleared_before(first, (messages,)), *(project(back) if back else [])]
    turns = [recorded for recorded in batch if recorded.event.type == "turn_recorded"]
    changes: list[Change] = [Insert(messages, COLUMNS, [row(recorded) for recorded in turns])]
    return changes if len(turns) == len(batch) else [*changes, _begun(batch)]


def _begun(batch: Sequence[Recorded]) -> Statement:
    """Returns a statement that inserts the forks of a batch into thread_forks."""
    return Statement(
        _FORK,
        [
            {"tenant": r.event.tenant, "thread": r.event.thread, "parent": fork.parent, "at_seq": fork.at_seq}
            for r in batch
            if isinstance(fork := r.event.data, ThreadForked)
        ],
    )


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
        turn.origin,
        offset_of(event.time),
    )


MESSAGES = Projection(
    "messages",
    3,
    (messages, thread_forks),
    REMOVALS | ARCHIVING | {"turn_recorded", "thread_forked"},
    project,
    keys_last=(messages,),
    said=(messages,),
)
