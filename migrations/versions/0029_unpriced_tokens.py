"""Stores the number of tokens whose price was not known when they were used."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    unsaid = "of older events, which do not say whether their price was known"
    for name, comment in (("unpriced_tokens", "of no known price"), ("unsaid_tokens", unsaid)):
        op.add_column("usage", sa.Column(name, sa.BigInteger, nullable=False, server_default="0", comment=comment))
    op.execute("UPDATE usage SET unsaid_tokens = tokens_in + tokens_out")
