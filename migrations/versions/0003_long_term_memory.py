"""Creates tables for long-term memory."""

import pgvector.sqlalchemy
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "entities",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("name_key", sa.Text(), nullable=False, comment="the name in normal form: case and width folded"),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("attributes", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("relations", postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment="[{type, target}]"),
        sa.Column("sources", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("mention_count", sa.Integer(), nullable=False),
        sa.Column("first_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "type", "name_key"),
    )
    op.create_index("entities_user", "entities", ["tenant", "user_id"], unique=False)
    op.create_table(
        "job_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("due_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ran_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("counts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "job", "due_at"),
    )
    op.create_table(
        "memories",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False, comment="the user's memory thread, or a shadow of it"),
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="the event that brought it"),
        sa.Column("status", sa.Text(), nullable=False, comment="valid, pending, closed, archived or forgotten"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column(
            "terms",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="content's search terms, repeated as it repeats them",
        ),
        sa.Column("content_key", sa.LargeBinary(), nullable=False, comment="SHA-256 of kind and normalised content"),
        sa.Column("dedupe_key", sa.Text(), nullable=True),
        sa.Column("strategy", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("importance", sa.Float(), nullable=False, comment="as it was at importance_at; it decays since then"),
        sa.Column("importance_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.Column("access_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_accessed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("valid_from", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("valid_to", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("replaced_by", sa.UUID(), nullable=True),
        sa.Column("closed_reason", sa.Text(), nullable=True),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="time of the event that brought it",
        ),
        sa.Column("confirmed_at", postgresql.TIMESTAMP(timezone=True), nullable=False, comment="when it was last said"),
        sa.Column("archived_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column(
            "sources",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="[{thread, seq, event_id, quote, said_at}], the first first",
        ),
        sa.Column("entities", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("derivation", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("embedding", pgvector.sqlalchemy.halfvec.HALFVEC(), nullable=True),
        sa.Column("embedding_model", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "id"),
    )
    op.create_index("memories_content", "memories", ["thread_id", "content_key"], unique=False)
    op.create_index("memories_entities", "memories", ["entities"], unique=False, postgresql_using="gin")
    op.create_index("memories_time", "memories", ["thread_id", "valid_from"], unique=False)
    op.create_index("memories_dedupe", "memories", ["thread_id", "dedupe_key"], unique=False)
    op.create_index(
        "memories_replaced",
        "memories",
        ["replaced_by"],
        unique=False,
        postgresql_where=sa.text("replaced_by IS NOT NULL"),
    )
    op.create_index("memories_terms", "memories", ["terms"], unique=False, postgresql_using="gin")
    op.create_index(
        "memories_unembedded", "memories", ["seq"], unique=False, postgresql_where=sa.text("embedding IS NULL")
    )
    op.create_index("memories_user", "memories", ["tenant", "user_id"], unique=False)
    op.create_table(
        "memory_compactions",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.UUID(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("members", postgresql.ARRAY(sa.UUID()), nullable=False),
        sa.Column("kept", sa.UUID(), nullable=True),
        sa.Column("made", sa.UUID(), nullable=True),
        sa.Column("similarity", sa.Float(), nullable=True),
        sa.Column("compacted_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("undone_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "event_id"),
    )
    op.create_table(
        "memory_conflicts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("conflict_id", sa.UUID(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("memory_id", sa.UUID(), nullable=False),
        sa.Column("against", postgresql.ARRAY(sa.UUID()), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("raised_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("answered_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "conflict_id"),
    )
    op.create_table(
        "memory_extractions",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("through_seq", sa.BigInteger(), nullable=False, comment="last sequence that was looked at"),
        sa.Column("extractor", sa.Text(), nullable=False),
        sa.Column("found", sa.Integer(), nullable=False),
        sa.Column("stored", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("extracted_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "conversation", "stage"),
    )
    op.create_table(
        "thread_archives",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("from_seq", sa.BigInteger(), nullable=False),
        sa.Column("through_seq", sa.BigInteger(), nullable=False),
        sa.Column("archived_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("restored_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "thread_id"),
    )
    op.create_table(
        "user_keys",
        sa.Column("key_id", sa.UUID(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column(
            "wrapped",
            sa.LargeBinary(),
            nullable=True,
            comment="the key, encrypted by the key-encryption key; NULL: destroyed",
        ),
        sa.Column("kek_id", sa.Text(), nullable=False, comment="which key-encryption key wrapped it"),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "retired_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="a newer key seals since then; this one still opens",
        ),
        sa.Column("destroyed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("key_id"),
        comment="Keys of users' personal data in the log (M9); no read model, and not in the log.",
    )
    op.create_index(
        "user_keys_current",
        "user_keys",
        ["tenant", "user_id"],
        unique=True,
        postgresql_where=sa.text("retired_at IS NULL AND destroyed_at IS NULL"),
    )
    op.create_index("user_keys_user", "user_keys", ["tenant", "user_id"], unique=False)
    op.add_column("model_cache", sa.Column("tenant", sa.Text(), nullable=True))
    op.add_column(
        "model_cache",
        sa.Column(
            "user_id", sa.Text(), nullable=True, comment="whose words the answer came from, so that it can be erased"
        ),
    )
    op.add_column("model_cache", sa.Column("thread_id", sa.Text(), nullable=True))
    op.drop_index("memory_vectors_user", table_name="memory_vectors")
    op.create_index("memory_vectors_user", "memory_vectors", ["tenant", "user_id", "id"], unique=False)
    op.create_index(
        "memory_vectors_place", "memory_vectors", ["tenant", "thread_id", "seq", "piece", "id"], unique=False
    )
