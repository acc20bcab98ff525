"""Creates the first tables."""

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "checkpoint_blobs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_ns", sa.Text(), server_default="", nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "checkpoint_ns", "channel", "version"),
    )
    op.create_table(
        "checkpoint_writes",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_ns", sa.Text(), server_default="", nullable=False),
        sa.Column("checkpoint_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False, comment="id of the event that was written"),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=True),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("task_path", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("checkpoint_ns", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "checkpoint_id", sa.Text(), nullable=False, comment="the turn's sequence, zero-padded: sorts in order"
        ),
        sa.Column("parent_checkpoint_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=True),
        sa.Column("checkpoint", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "checkpoint_ns", "checkpoint_id"),
    )
    op.create_table(
        "conversation_summaries",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("message_count", sa.Integer(), nullable=False, comment="messages the summary covers"),
        sa.Column("covered_seq", sa.BigInteger(), nullable=False, comment="last sequence it covers"),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="sequence of the event that wrote it"),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id"),
    )
    op.create_table(
        "dead_letters",
        sa.Column("projection", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_token", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, comment="poison, or behind: after a poison event of its thread"),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False, comment="parked or dropped"),
        sa.Column("parked_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("projection", "build", "seq"),
        comment="Events that a projection could not apply; the events stay in the log.",
    )
    op.create_table(
        "embedding_cache",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("text_hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of the embedded text"),
        sa.Column("embedding", pgvector.sqlalchemy.halfvec.HALFVEC(), nullable=False),
        sa.PrimaryKeyConstraint("model", "text_hash"),
        comment="Content-addressed vectors; no read model, survives rebuilds (L7).",
    )
    op.create_table(
        "event_ids",
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.UUID(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("partition", "event_id"),
        comment="First sequence of every event id: a second one, however late, is no event (L4).",
    )
    op.create_table(
        "memory_episodes",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("question_seq", sa.BigInteger(), nullable=False),
        sa.Column("question_chunk", sa.Text(), nullable=False),
        sa.Column("answer_seq", sa.BigInteger(), nullable=False),
        sa.Column("answer_chunk", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "question_seq"),
    )
    op.create_table(
        "memory_tagged",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("through_seq", sa.BigInteger(), nullable=False, comment="last sequence topics were looked for in"),
        sa.PrimaryKeyConstraint("tenant", "thread_id"),
    )
    op.create_table(
        "memory_topics",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("mention_count", sa.Integer(), nullable=False),
        sa.Column("last_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "topic"),
    )
    op.create_table(
        "memory_vectors",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False, comment="hash of tenant, thread and index_text"),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="first turn that says it"),
        sa.Column("seqs", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("event_ids", postgresql.ARRAY(sa.UUID()), nullable=False),
        sa.Column("source_ids", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("piece", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("speaker", sa.Text(), nullable=False),
        sa.Column("chunk", sa.Text(), nullable=False),
        sa.Column("index_text", sa.Text(), nullable=False, comment="what is embedded"),
        sa.Column(
            "terms",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="the chunk's search terms, repeated as it repeats them",
        ),
        sa.Column("topics", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.Column("embedding", pgvector.sqlalchemy.halfvec.HALFVEC(), nullable=True),
        sa.Column("embedding_model", sa.Text(), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "id"),
    )
    op.create_index("memory_vectors_terms", "memory_vectors", ["terms"], unique=False, postgresql_using="gin")
    op.create_index("memory_vectors_topics", "memory_vectors", ["topics"], unique=False, postgresql_using="gin")
    op.create_index(
        "memory_vectors_unembedded",
        "memory_vectors",
        ["seq"],
        unique=False,
        postgresql_where=sa.text("embedding IS NULL"),
    )
    op.create_index("memory_vectors_user", "memory_vectors", ["tenant", "user_id"], unique=False)
    op.create_table(
        "messages",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.UUID(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("content", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("tool_calls", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("tool_call_id", sa.Text(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=True),
        sa.Column("tokens_out", sa.Integer(), nullable=True),
        sa.Column("latency_ms", sa.Float(), nullable=True),
        sa.Column("source_id", sa.Text(), nullable=True),
        sa.Column("time", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "seq"),
    )
    op.create_table(
        "model_cache",
        sa.Column("request_hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of model and prompt"),
        sa.Column("response", sa.JSON(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("request_hash"),
        comment="Answers of reactors' model calls until their event is stored: the same input is one call.",
    )
    op.create_table(
        "projection_positions",
        sa.Column("projection", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False, comment="'live' or the name of a rebuild under way"),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("code_version", sa.Integer(), nullable=False),
        sa.Column("updated_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("projection", "build", "partition"),
        comment="How far each projection has read; moved in the transaction that writes its rows.",
    )
    op.create_table(
        "reactor_spending",
        sa.Column("reactor", sa.Text(), nullable=False),
        sa.Column("spent_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("reactor", "spent_at"),
        comment="What reactors spent in the last hour, for their budgets.",
    )
    op.create_table(
        "thread_activity",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("message_count", sa.Integer(), nullable=False),
        sa.Column("user_message_count", sa.Integer(), nullable=False),
        sa.Column("assistant_message_count", sa.Integer(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_active_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id"),
    )
    op.create_index(
        "thread_activity_recent", "thread_activity", ["tenant", sa.literal_column("last_active_at DESC")], unique=False
    )
    op.create_table(
        "usage",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False, comment="UTC"),
        sa.Column("user_id", sa.Text(), nullable=False, comment="'' where unknown"),
        sa.Column("agent", sa.Text(), nullable=False, comment="'' where none"),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column(
            "cost_micro_usd", sa.BigInteger(), nullable=False, comment="integer, so that sums do not depend on order"
        ),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("latency_ms_sum", sa.BigInteger(), nullable=False),
        sa.Column("latency_ms_max", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "day", "user_id", "agent", "purpose", "provider", "model"),
    )
