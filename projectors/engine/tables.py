"""The metadata all read models share, and the engine's own tables.

Everything lives in the schema `turnlog`. Statements name tables without a schema: a rebuild points the
search path at its shadow schema first, so that the same projector writes there.
"""

from typing import Any

import sqlalchemy as sa
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP, UUID

metadata = sa.MetaData()


def timestamptz() -> TIMESTAMP:
    return TIMESTAMP(timezone=True)


def utc_offset_column() -> sa.Column[int]:
    comment = "seconds that the speaker's clock is ahead of UTC; 0 also where it is not known"
    return sa.Column("utc_offset", sa.Integer, nullable=False, server_default="0", comment=comment)


def thread_table(
    name: str, *columns: sa.Column[Any], thread: str | None = None, comment: str | None = None
) -> sa.Table:
    """A table of a read model, with keys that begin with tenant and thread. thread: comment of the column thread_id."""
    place = (
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True, comment=thread),
    )
    return sa.Table(name, metadata, *place, *columns, comment=comment)


projection_positions = sa.Table(
    "projection_positions",
    metadata,
    sa.Column("projection", sa.Text, primary_key=True),
    sa.Column("build", sa.Text, primary_key=True, comment="'live' or the name of a rebuild under way"),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("code_version", sa.Integer, nullable=False),
    sa.Column("updated_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    sa.Column("stored_at", timestamptz(), comment="when the log stored the event at the position; NULL: not known"),
    comment="How far each projection has read; moved in the transaction that writes its rows.",
)

projected_log = sa.Table(
    "projected_log",
    metadata,
    sa.Column("single", sa.Boolean, sa.CheckConstraint("single"), primary_key=True, server_default=sa.true()),
    sa.Column("log_id", sa.Text, nullable=False),
    sa.Column(
        "kept_through",
        sa.BigInteger,
        comment="set when another log was adopted: the log lacks events up to here whose rows are kept",
    ),
    comment="The log that the rows were made from: one row.",
)

event_ids = sa.Table(
    "event_ids",
    metadata,
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("event_id", UUID(as_uuid=True), primary_key=True),
    sa.Column(
        "thread_hash", UUID(as_uuid=True), primary_key=True, comment="half of the SHA-256 of tenant and thread token"
    ),
    sa.Column("seq", sa.BigInteger, nullable=False),
    comment="First sequence of every event id in its thread: a second one, however late, is no event (L4).",
)

event_ids_of_any_thread = sa.Table(
    "event_ids_of_any_thread",
    metadata,
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("event_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    comment="As event_ids, of events before it had a thread: their ids are duplicates in every thread.",
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("projection", sa.Text, primary_key=True),
    sa.Column("build", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("thread_token", sa.Text, nullable=False),
    sa.Column("event_type", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, comment="poison, or behind: after a poison event of its thread"),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, comment="parked or dropped"),
    sa.Column("parked_at", timestamptz(), nullable=False, server_default=sa.func.now()),
    comment="Events that a projection could not apply; the events stay in the log.",
)
# Each batch looks for the poison events of its threads, each read for the first parked event of its thread.
sa.Index(
    "dead_letters_poison",
    *(dead_letters.c[name] for name in ("build", "partition", "tenant", "thread_token")),
    postgresql_where=sa.text("status = 'parked' AND reason = 'poison'"),
)
sa.Index(
    "dead_letters_thread",
    *(dead_letters.c[name] for name in ("tenant", "thread_token", "seq")),
    postgresql_where=sa.text("status = 'parked'"),
)

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
