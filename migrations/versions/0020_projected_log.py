"""Records the log that the rows were made from."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "projected_log",
        sa.Column("single", sa.Boolean, sa.CheckConstraint("single"), primary_key=True, server_default=sa.true()),
        sa.Column("log_id", sa.Text, nullable=False),
        sa.Column(
            "kept_through",
            sa.BigInteger,
            comment="set when another log was adopted: the log lacks events up to here whose rows are kept",
        ),
        comment="The log that the rows were made from: one row.",
    )
    op.add_column(
        "projection_positions",
        sa.Column(
            "stored_at",
            sa.DateTime(timezone=True),
            comment="when the log stored the event at the position; NULL: not known",
        ),
    )
