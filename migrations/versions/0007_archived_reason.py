"""Stores the reason why a person archived a memory."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column(
        "memories",
        sa.Column("archived_reason", sa.Text, comment="why a person archived it; the daily job gives none"),
    )
