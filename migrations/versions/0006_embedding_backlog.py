"""Indexes the embedder's backlog by thread and model, and stores its speed."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"

_NO_VECTOR, _HAS_MODEL = sa.text("embedding IS NULL"), sa.text("embedding_model IS NOT NULL")


def upgrade() -> None:
    op.drop_index("memory_vectors_unembedded", table_name="memory_vectors", postgresql_where=_NO_VECTOR)
    op.create_index(
        "memory_vectors_unembedded", "memory_vectors", ["tenant", "thread_id", "seq"], postgresql_where=_NO_VECTOR
    )
    op.create_index(
        "memory_vectors_model",
        "memory_vectors",
        ["embedding_model", "tenant", "thread_id"],
        postgresql_where=_HAS_MODEL,
    )
    op.create_index("memories_model", "memories", ["embedding_model"], postgresql_where=_HAS_MODEL)
    op.create_table(
        "embedding_rounds",
        sa.Column("ended_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("texts", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("ended_at"),
        comment="How long the embedder took for how many texts in the last hour, to estimate when it will be done.",
    )
