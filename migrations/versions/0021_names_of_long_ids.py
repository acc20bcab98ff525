"""Renames threads of users with long ids: pads the hash in the name, so that no other user can have it as an id."""

from alembic import op

revision = "0021"
down_revision = "0020"

TABLES = (
    *("memories", "memory_conflicts", "memory_compactions", "memory_extractions", "user_preferences", "entities"),
    "api_keys",
)
LONG = "octet_length(user_id) > 384"


def upgrade() -> None:
    """Renames threads that are named by the bare hash of a long user id to the names that events.subjects makes now."""
    for table in TABLES:
        op.execute(
            f"UPDATE {table} SET thread_id = left(thread_id, -64) || lpad(right(thread_id, 64), 385, '~') "
            f"WHERE {LONG} AND right(thread_id, 64) = encode(sha256(convert_to(user_id, 'UTF8')), 'hex') "
            "AND left(thread_id, -64) ~ '^(memories/|access/|shadow/[A-Za-z0-9_-]{1,64}/memories/)$'"
        )
    # forgotten_turns has no column for the user, so rows of another user may be copied too. They do no harm, because a
    # turn belongs to one user.
    op.execute(
        "INSERT INTO forgotten_turns (tenant, thread_id, event_id) SELECT f.tenant, u.thread_id, f.event_id "
        f"FROM (SELECT tenant, thread_id FROM memories WHERE {LONG} UNION SELECT tenant, thread_id FROM entities "
        f"WHERE {LONG}) u JOIN forgotten_turns f ON f.tenant = u.tenant "
        "AND f.thread_id = left(u.thread_id, -385) || right(u.thread_id, 64)"
    )
