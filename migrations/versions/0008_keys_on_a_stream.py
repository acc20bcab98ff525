"""Stores the sequence of a user's key on the stream of keys."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
BEFORE = "Keys of users' personal data in the log (M9); no read model, and not in the log."
NOW = "Keys of users' personal data in the log (M9); a copy of the stream TURNLOG_KEYS, no read model."


def upgrade() -> None:
    op.add_column(
        "user_keys", sa.Column("seq", sa.BigInteger, comment="where it is on the stream TURNLOG_KEYS; NULL: not yet")
    )
    op.create_table_comment("user_keys", NOW, existing_comment=BEFORE)
