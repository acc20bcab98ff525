"""Creates the table of repeatable writes and their responses."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import UUID

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "repeatable_writes",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column(
            "id", UUID(as_uuid=True), primary_key=True, comment="from the user, the route and the Idempotency-Key"
        ),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False, comment="HMAC of the body"),
        sa.Column("answer", sa.LargeBinary, comment="encrypted; NULL: under way, or followed by another connection"),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "held_until",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="end of the lease of a write under way",
        ),
        comment="Writes with an Idempotency-Key of the last two days and what they answered; no read model.",
    )
    op.create_index("repeatable_writes_user", "repeatable_writes", ["tenant", "user_id"])
    op.create_index("repeatable_writes_begun", "repeatable_writes", ["begun_at"])
