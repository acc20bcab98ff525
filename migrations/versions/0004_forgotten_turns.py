"""Creates the table of forgotten turns, whose words entities must not keep."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "forgotten_turns",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.UUID(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "thread_id", "event_id"),
        comment="Turns of which a memory was forgotten: no entity has words of them.",
    )
