"""Compares event ids within a thread only, so that a forged id on another thread does not make an event a duplicate."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
BEFORE = "First sequence of every event id: a second one, however late, is no event (L4)."
NOW = "First sequence of every event id in its thread: a second one, however late, is no event (L4)."
OLD = "As event_ids, of events before it had a thread: their ids are duplicates in every thread."


def upgrade() -> None:
    """Moves the existing ids to a table for all threads, because only the log knows their threads."""
    op.rename_table("event_ids", "event_ids_of_any_thread")
    op.execute("ALTER INDEX event_ids_pkey RENAME TO event_ids_of_any_thread_pkey")
    op.create_table_comment("event_ids_of_any_thread", OLD, existing_comment=BEFORE)
    op.create_table(
        "event_ids",
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.UUID(), nullable=False),
        sa.Column("thread_hash", sa.UUID(), nullable=False, comment="half of the SHA-256 of tenant and thread token"),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("partition", "event_id", "thread_hash"),
        comment=NOW,
    )
