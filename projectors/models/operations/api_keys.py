"""api_keys: the keys with their rights and ends; api_key_uses: the time of each key's last use."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from turnlog.events.contracts import REMOVALS, ApiKeyCreated, ApiKeyRevoked, Recorded
from turnlog.projectors.engine.changes import Change, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import INTERNAL, metadata, thread_table, timestamptz

api_keys = thread_table(
    "api_keys",
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the event that created the key"),
    sa.Column("digest", sa.Text, nullable=False, comment="HMAC of the key and its rights", info=INTERNAL),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("scopes", ARRAY(sa.Text), nullable=False),
    sa.Column("label", sa.Text),
    sa.Column("created_at", timestamptz(), nullable=False),
    sa.Column("expires_at", timestamptz()),
    sa.Column("revoked_at", timestamptz()),
    thread="the thread of the user's keys",
)
sa.Index("api_keys_id", api_keys.c.id)

api_key_uses = sa.Table(
    "api_key_uses",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("used_at", timestamptz(), nullable=False),
    sa.Column(
        "refreshes",
        sa.Integer,
        nullable=False,
        server_default="0",
        comment="number of refreshes of the sign-in that the key stands for",
    ),
    sa.Column("refreshed_at", timestamptz(), comment="time of the last refresh"),
    comment="Time of the last use of each API key, to the minute. No read model.",
)

COLUMNS = tuple(column.name for column in api_keys.columns)
_REVOKE = """
UPDATE api_keys SET revoked_at = coalesce(revoked_at, %(at)s)
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND id = %(id)s"""


def project(batch: Sequence[Recorded]) -> list[Change]:
    return [_change(recorded) for recorded in batch]


def _change(recorded: Recorded) -> Change:
    event, data = recorded.event, recorded.event.data
    if isinstance(data, ApiKeyRevoked):
        key = {"tenant": event.tenant, "thread": event.thread, "id": data.key_id}
        return Statement(_REVOKE, [key | {"at": event.time}])
    assert isinstance(data, ApiKeyCreated)
    ids = (event.tenant, event.thread, data.key_id, event.user or "", recorded.seq)
    row = (*ids, data.digest, data.role, list(data.scopes), data.label, event.time, data.expires_at, None)
    return Upsert(api_keys, COLUMNS, [row])


ACCESS_KEYS = Projection("api_keys", 1, (api_keys,), REMOVALS | {"api_key_created", "api_key_revoked"}, project)
