"""Creates tables for API keys and the time of their last use."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True, comment="the thread of the user's keys"),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False, comment="the event that brought it"),
        sa.Column("digest", sa.Text, nullable=False, comment="HMAC of the key and all that it may do"),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("scopes", ARRAY(sa.Text), nullable=False),
        sa.Column("label", sa.Text),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
    )
    op.create_index("api_keys_id", "api_keys", ["id"])
    op.create_table(
        "api_key_uses",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key_id", sa.Text, primary_key=True),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        comment="When an API key was used last, to the minute; no read model.",
    )
