"""Indexes the conversations of a user."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_index("thread_activity_user", "thread_activity", ["tenant", "user_id", sa.text("last_active_at DESC")])
