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
    comment="Vectors by model and hash of the text. No read model: a rebuild keeps them.",
)

model_cache = sa.Table(
    "model_cache",
    metadata,
    sa.Column("request_hash", sa.LargeBinary, primary_key=True, comment="SHA-256 of model and prompt"),
    sa.Column("response", sa.JSON, nullable=False),
    sa.Column("created_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    sa.Column("tenant", sa.Text),
    sa.Column("user_id", sa.Text, comment="the user whose words the model read, so that an erasure finds the row"),
    sa.Column("thread_id", sa.Text),
    comment="Answers of models that reactors called, kept until their event is stored: a repeated call is not sent.",
)

reactor_spending = sa.Table(
    "reactor_spending",
    metadata,
    sa.Column("reactor", sa.Text, primary_key=True),
    sa.Column("spent_at", timestamptz(), primary_key=True),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    comment="Calls and tokens of reactors in the last hour, for their spending limits.",
)

embedding_rounds = sa.Table(
    "embedding_rounds",
    metadata,
    sa.Column("ended_at", timestamptz(), primary_key=True),
    sa.Column("texts", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    comment="Texts and duration of each of the embedder's rounds in the last hour, to estimate when it will be done.",
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
    sa.Column("held_until", timestamptz(), comment="end of the lease while the request runs; NULL: it has ended"),
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
    sa.Column(
        "started_at", sa.Float, nullable=False, comment="seconds since 1970, by the clock of the process's machine"
    ),
    sa.Column("roles", sa.ARRAY(sa.Text), nullable=False),
    sa.Column(
        "loops",
        JSONB,
        nullable=False,
        comment="the loops that must keep running, each with its state at the last heartbeat",
    ),
    sa.Column("beat_at", timestamptz(), nullable=False),
    comment="Processes that play roles. Each renews its row and deletes it at a clean end. No read model.",
)

durables = sa.Table(
    "durables",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("log", sa.Text, primary_key=True, comment="id of the log that the position belongs to"),
    sa.Column("position", sa.BigInteger, nullable=False, comment="all events up to this sequence were acknowledged"),
    comment="Positions of the workers' durable consumers. A deleted consumer is recreated here. No read model.",
)

repeatable_writes = sa.Table(
    "repeatable_writes",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column(
        "id", UUID(as_uuid=True), primary_key=True, comment="made from the user, the route and the Idempotency-Key"
    ),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column(
        "request",
        sa.LargeBinary,
        nullable=False,
        comment="HMAC of the body; for retries of a library, SHA-256 of the request",
    ),
    sa.Column(
        "answer",
        sa.LargeBinary,
        comment="encrypted response; for retries of a library, id and thread of the answer; NULL: running or not kept",
    ),
    sa.Column("begun_at", timestamptz(), nullable=False),
    sa.Column("held_until", timestamptz(), nullable=False, comment="end of the lease while the write runs"),
    comment="Writes with an Idempotency-Key in the last two days, with their responses. No read model.",
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
    sa.Column("kek_id", sa.Text, nullable=False, comment="id of the key-encryption key that encrypted it"),
    sa.Column("created_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    sa.Column("retired_at", timestamptz(), comment="from then on, a newer key encrypts; this one still decrypts"),
    sa.Column("destroyed_at", timestamptz()),
    sa.Column(
        "seq", sa.BigInteger, comment="sequence of its newest copy on the stream TURNLOG_KEYS; NULL: not copied yet"
    ),
    comment="Keys that encrypt users' personal data in the log. A copy of the stream TURNLOG_KEYS, no read model.",
)
sa.Index("user_keys_user", user_keys.c.tenant, user_keys.c.user_id)
sa.Index(
    "user_keys_current",
    user_keys.c.tenant,
    user_keys.c.user_id,
    unique=True,
    postgresql_where=sa.text("retired_at IS NULL AND destroyed_at IS NULL"),
)
