"""Declares the tables of state that no projection owns: caches, spending, throttle, processes, repeatable writes,
users' keys.

They are in the schema `turnlog` like all tables; a rebuild of the read models does not change them.
"""

import sqlalchemy as sa
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy.dialects.postgresql import JSONB, UUID

from turnlog.projectors.engine.tables import metadata as metadata
from turnlog.projectors.engine.tables import timestamptz

embedding_cache = sa.Table(
    "embedding_cache",
    metadata,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("text_hash", sa.LargeBinary, primary_key=True, comment="SHA-256 of the embedded text"),
    sa.Column("embedding", HALFVEC(), nullable=False),
    sa.Column("created_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    comment="Content-addressed vectors; no read model, survives rebuilds (L7).",
)

model_cache = sa.Table(
    "model_cache",
    metadata,
    sa.Column("request_hash", sa.LargeBinary, primary_key=True, comment="SHA-256 of model and prompt"),
    sa.Column("response", sa.JSON, nullable=False),
    sa.Column("created_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    sa.Column("tenant", sa.Text),
    sa.Column("user_id", sa.Text, comment="whose words the answer came from, so that it can be erased"),
    sa.Column("thread_id", sa.Text),
    comment="Answers of reactors' model calls until their event is stored: the same input is one call.",
)

reactor_spending = sa.Table(
    "reactor_spending",
    metadata,
    sa.Column("reactor", sa.Text, primary_key=True),
    sa.Column("spent_at", timestamptz(), primary_key=True),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    comment="What reactors spent in the last hour, for their budgets.",
)

embedding_rounds = sa.Table(
    "embedding_rounds",
    metadata,
    sa.Column("ended_at", timestamptz(), primary_key=True),
    sa.Column("texts", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    comment="How long the embedder took for how many texts in the last hour, to estimate when it will be done.",
)

admissions = sa.Table(
    "admissions",
    metadata,
    sa.Column("id", UUID(as_uuid=True), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("thread_id", sa.Text),
    sa.Column("agent", sa.Text),
    sa.Column("admitted_at", timestamptz(), nullable=False),
    sa.Column("held_until", timestamptz(), comment="end of the lease of a request under way; NULL: it has ended"),
    comment="Requests that the throttle admitted in the last hour or two; no read model.",
)
sa.Index("admissions_user", *(admissions.c[name] for name in ("tenant", "user_id", "admitted_at")))
sa.Index("admissions_thread", *(admissions.c[name] for name in ("tenant", "thread_id", "admitted_at")))
sa.Index(
    "admissions_held",
    admissions.c.tenant,
    admissions.c.user_id,
    postgresql_where=sa.text("held_until IS NOT NULL"),
)

processes = sa.Table(
    "processes",
    metadata,
    sa.Column("id", UUID(as_uuid=True), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False, comment="by the clock of its machine, in seconds since 1970"),
    sa.Column("roles", sa.ARRAY(sa.Text), nullable=False),
    sa.Column("loops", JSONB, nullable=False, comment="what must not end in it, and how each was at the last beat"),
    sa.Column("beat_at", timestamptz(), nullable=False),
    comment="Processes that play roles: each renews its row, and deletes it when it ends as asked; no read model.",
)

durables = sa.Table(
    "durables",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("log", sa.Text, primary_key=True, comment="which log its positions are of"),
    sa.Column("position", sa.BigInteger, nullable=False, comment="all events up to it were acknowledged"),
    comment="How far the durable consumers of workers are: one that is deleted begins there again; no read model.",
)

repeatable_writes = sa.Table(
    "repeatable_writes",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("id", UUID(as_uuid=True), primary_key=True, comment="from the user, the route and the Idempotency-Key"),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("request", sa.LargeBinary, nullable=False, comment="HMAC of the body"),
    sa.Column("answer", sa.LargeBinary, comment="encrypted; NULL: under way, or followed by another connection"),
    sa.Column("begun_at", timestamptz(), nullable=False),
    sa.Column("held_until", timestamptz(), nullable=False, comment="end of the lease of a write under way"),
    comment="Writes with an Idempotency-Key of the last two days and what they answered; no read model.",
)
sa.Index("repeatable_writes_user", repeatable_writes.c.tenant, repeatable_writes.c.user_id)
sa.Index("repeatable_writes_begun", repeatable_writes.c.begun_at)

user_keys = sa.Table(
    "user_keys",
    metadata,
    sa.Column("key_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("wrapped", sa.LargeBinary, comment="the key, encrypted by the key-encryption key; NULL: destroyed"),
    sa.Column("kek_id", sa.Text, nullable=False, comment="which key-encryption key wrapped it"),
    sa.Column("created_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    sa.Column("retired_at", timestamptz(), comment="a newer key seals since then; this one still opens"),
    sa.Column("destroyed_at", timestamptz()),
    sa.Column("seq", sa.BigInteger, comment="where it is on the stream TURNLOG_KEYS; NULL: not yet"),
    comment="Keys of users' personal data in the log (M9); a copy of the stream TURNLOG_KEYS, no read model.",
)
sa.Index("user_keys_user", user_keys.c.tenant, user_keys.c.user_id)
sa.Index(
    "user_keys_current",
    user_keys.c.tenant,
    user_keys.c.user_id,
    unique=True,
    postgresql_where=sa.text("retired_at IS NULL AND destroyed_at IS NULL"),
)
