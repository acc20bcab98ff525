"""Creates tables for short-term memory: sessions, LangGraph's lists and store, forks.

Deletes checkpoint rows of single turns, which are in `messages` too. All other rows equal those of a rebuild.
"""

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "checkpoint_lists",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("list_id", sa.Text(), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False, comment="place of the first of these items in the list"),
        sa.Column("base_list", sa.Text(), nullable=True, comment="the list this one begins like"),
        sa.Column("base_count", sa.Integer(), nullable=False, comment="how many items of it"),
        sa.Column("items", sa.JSON(), nullable=False, comment="text as it came: it is only ever read whole"),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "list_id", "first"),
    )
    op.create_table(
        "session_checkpoints",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.UUID(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("covered_seq", sa.BigInteger(), nullable=False),
        sa.Column("turns_covered", sa.Integer(), nullable=False),
        sa.Column("recent_turns", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "seq"),
    )
    op.create_table(
        "sessions",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("created_seq", sa.BigInteger(), nullable=False, comment="of session_created; earlier turns are out"),
        sa.Column(
            "rules",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="threshold, recent turns, window: as session_created set them",
        ),
        sa.Column("current_agent_key", sa.Text(), nullable=True),
        sa.Column("last_bot_message", sa.Text(), nullable=False),
        sa.Column("turn_count", sa.Integer(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False, comment="FULL_HISTORY or SUMMARY_N"),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("checkpoint_id", sa.UUID(), nullable=True, comment="event of the segment's checkpoint"),
        sa.Column("covered_seq", sa.BigInteger(), nullable=False, comment="the summary covers turns up to here"),
        sa.Column("recent_turns", sa.Integer(), nullable=False, comment="covered turns that the segment keeps in full"),
        sa.Column("global_state", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("user_snapshot", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="last event that is in the row"),
        sa.PrimaryKeyConstraint("tenant", "thread_id"),
    )
    op.create_table(
        "store_items",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False, comment="the namespace as the log's thread"),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False, comment="labels joined by dots, with a dot at the end"),
        sa.Column("value", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "key"),
    )
    op.create_index(
        "store_items_by_namespace",
        "store_items",
        ["tenant", "namespace"],
        unique=False,
        postgresql_ops={"namespace": "text_pattern_ops"},
    )
    op.create_table(
        "store_vectors",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("embedding", pgvector.sqlalchemy.halfvec.HALFVEC(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "key", "field"),
    )
    op.create_table(
        "thread_forks",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=False),
        sa.Column(
            "at_seq",
            sa.BigInteger(),
            nullable=False,
            comment="last sequence of the parent that belongs to the fork",
        ),
        sa.PrimaryKeyConstraint("tenant", "thread_id"),
    )
    op.alter_column(
        "checkpoint_writes",
        "task_id",
        existing_type=sa.TEXT(),
        comment=None,
        existing_comment="id of the event that was written",
        existing_nullable=False,
    )
    op.execute("DELETE FROM checkpoints")
    op.execute("DELETE FROM checkpoint_writes")
    op.execute("UPDATE projection_positions SET code_version = 2 WHERE projection = 'checkpoints'")
    op.add_column("checkpoints", sa.Column("run_id", sa.Text(), nullable=True))
    op.add_column(
        "checkpoints", sa.Column("seq", sa.BigInteger(), nullable=False, comment="sequence of the event that saved it")
    )
    op.alter_column(
        "checkpoints",
        "checkpoint_id",
        existing_type=sa.TEXT(),
        comment=None,
        existing_comment="the turn's sequence, zero-padded: sorts in order",
        existing_nullable=False,
    )
    op.create_index(
        "checkpoints_of_run",
        "checkpoints",
        ["tenant", "run_id"],
        unique=False,
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
