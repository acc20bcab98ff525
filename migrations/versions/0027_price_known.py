"""Stores whether the price of a run's step was known."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    comment = "of the cost; null where an older event does not say"
    op.add_column("agent_run_steps", sa.Column("price_known", sa.Boolean, comment=comment))
