"""Stores the UTC offset of a turn's time."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Adds the columns; existing rows have no offset until they are rebuilt."""
    comment = "seconds that the speaker's clock is ahead of UTC; 0 also where it is not known"
    for table in ("messages", "memory_vectors"):
        op.add_column(table, sa.Column("utc_offset", sa.Integer, nullable=False, server_default="0", comment=comment))
