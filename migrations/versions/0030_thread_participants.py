"""Creates the table of participants in conversations of other users."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_table(
        "thread_participants",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, comment="under which turns of the thread are the user's"),
        sa.Column("role", sa.Text, nullable=False, comment="reader, member or owner"),
        sa.Column("agreed", sa.Boolean, nullable=False, comment="false: an invitation, without effect"),
    )
    op.create_index("thread_participants_user", "thread_participants", ["tenant", "user_id"])
