"""Stores whose words a turn contains."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Sets the origin of existing rows by role and name; a later rebuild also uses their text."""
    comment = "whose words: person, participant, tool, program, quoted"
    op.add_column("messages", sa.Column("origin", sa.Text, comment=comment))
    op.execute(
        "UPDATE messages SET origin = CASE WHEN role = 'tool' THEN 'tool' WHEN role <> 'user' THEN 'program' "
        "WHEN lower(name) <> lower(user_id) THEN 'participant' ELSE 'person' END"
    )
    op.alter_column("messages", "origin", nullable=False)
