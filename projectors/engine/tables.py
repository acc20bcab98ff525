"""The metadata that all read models share, and the engine's own tables.

All tables are in the schema `turnlog`. Statements name tables without a schema, so that the same projector writes to
the shadow schema when a rebuild puts it first in the search path.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TIMESTAMP, UUID

metadata = sa.MetaData()
INTERNAL = {"internal": True}  # the `info` of columns that are hidden when an event's rows are shown


def timestamptz() -> TIMESTAMP:
    return TIMESTAMP(timezone=True)


def utc_offset_column() -> sa.Column[int]:
    comment = "seconds by which the speaker's clock is ahead of UTC; 0 if unknown"
    return sa.Column("utc_offset", sa.Integer, nullable=False, server_default="0", comment=comment)


def thread_table(
    name: str, *columns: sa.Column[Any], thread: str | None = None, comment: str | None = None
) -> sa.Table:
    """Returns a table of a read model whose primary key begins with tenant and thread. thread: the comment of the
    column thread_id."""
    thread_columns = (
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True, comment=thread),
    )
    return sa.Table(name, metadata, *thread_columns, *columns, comment=comment)


projection_positions = sa.Table(
    "projection_positions",
    metadata,
    sa.Column("projection", sa.Text, primary_key=True),
    sa.Column("build", sa.Text, primary_key=True, comment="'live' or the name of a rebuild under way"),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("code_version", sa.Integer, nullable=False),
    sa.Column("updated_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    sa.Column("stored_at", timestamptz(), comment="when the log stored the event at the position; NULL: unknown"),
    comment="How far each projection has read; moved in the transaction that writes its rows.",
)

projected_log = sa.Table(
    "projected_log",
    metadata,
    sa.Column("single", sa.Boolean, sa.CheckConstraint("single"), primary_key=True, server_default=sa.true()),
    sa.Column("log_id", sa.Text, nullable=False),
    sa.Column(
        "kept_through",
        sa.BigInteger,
        comment="set when another log was adopted: rows of events up to here stay, although that log lacks them",
    ),
    comment="The log from which the rows were made; one row.",
)

event_ids = sa.Table(
    "event_ids",
    metadata,
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("event_id", UUID(as_uuid=True), primary_key=True),
    sa.Column(
        "thread_hash", UUID(as_uuid=True), primary_key=True, comment="half of the SHA-256 of tenant and thread token"
    ),
    sa.Column("seq", sa.BigInteger, nullable=False),
    comment="First sequence of every event id in its thread. A later event with the same id is not applied.",
)

event_ids_of_any_thread = sa.Table(
    "event_ids_of_any_thread",
    metadata,
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("event_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    comment="Ids of events from before event_ids had threads. An event with such an id is a duplicate in every thread.",
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("projection", sa.Text, primary_key=True),
    sa.Column("build", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("thread_token", sa.Text, nullable=False),
    sa.Column("event_type", sa.Text, nullable=False),
    sa.Column(
        "reason",
        sa.Text,
        nullable=False,
        comment="poison: it cannot be applied; behind: it follows a poison event of its thread",
    ),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, comment="parked or dropped"),
    sa.Column("parked_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    comment="Events that a projection could not apply; the events stay in the log.",
)
# The first index serves each batch, which looks for poison events of its threads; the second serves each read of a
# thread, which looks for its first parked event.
sa.Index(
    "dead_letters_poison",
    *(dead_letters.c[name] for name in ("build", "partition", "tenant", "thread_token")),
    postgresql_where=sa.text("status = 'parked' AND reason = 'poison'"),
)
sa.Index(
    "dead_letters_thread",
    *(dead_letters.c[name] for name in ("tenant", "thread_token", "seq")),
    postgresql_where=sa.text("status = 'parked'"),
)
