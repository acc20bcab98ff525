"""conversation_summaries: one rolling summary per thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from turnlog.events.contracts import REMOVALS, ForkedSummary, Recorded, SummaryWritten, ThreadForked
from turnlog.projectors.engine.changes import Change, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz
from turnlog.projectors.engine.writer import Connection

conversation_summaries = thread_table(
    "conversation_summaries",
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("message_count", sa.Integer, nullable=False, comment="number of messages that the summary covers"),
    sa.Column("covered_seq", sa.BigInteger, nullable=False, comment="last sequence that the summary covers"),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the event that wrote it"),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("updated_at", timestamptz(), nullable=False),
)
COLUMNS = tuple(column.name for column in conversation_summaries.columns)
_UPDATE = tuple((name, f"excluded.{name}") for name in COLUMNS[2:])


def project(batch: Sequence[Recorded]) -> list[Change]:
    newest = {(r.event.tenant, r.event.thread): row for r in batch if (row := _row(r))}
    return [Upsert(conversation_summaries, COLUMNS, list(newest.values()), _UPDATE)]


def _row(recorded: Recorded) -> Row | None:
    event = recorded.event
    match event.data:
        case SummaryWritten(derivation=derivation) as data:
            model = derivation.model
        case ThreadForked(summary=ForkedSummary(model=model) as data):
            pass
        case _:
            return None  # a fork that began before the first summary
    return (
        event.tenant,
        event.thread,
        data.summary,
        data.message_count,
        data.covered_seq,
        recorded.seq,
        model,
        event.time,
    )


SUMMARIES = Projection(
    "summaries", 1, (conversation_summaries,), REMOVALS | {"summary_written", "thread_forked"}, project
)


@dataclass(frozen=True, slots=True)
class Summary:
    summary: str
    message_count: int
    covered_seq: int
    seq: int
    model: str
    updated_at: datetime


async def thread_summary(conn: Connection, tenant: str, thread: str) -> Summary | None:
    rows = await conn.execute(
        "SELECT summary, message_count, covered_seq, seq, model, updated_at FROM conversation_summaries "
        "WHERE tenant = %s AND thread_id = %s",
        (tenant, thread),
    )
    row = await rows.fetchone()
    return Summary(*row) if row else None
