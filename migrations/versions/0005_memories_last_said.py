"""Indexes memories by the time when they were last said."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_index("memories_last_said", "memories", ["thread_id", "confirmed_at"], unique=False)
