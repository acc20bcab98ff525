"""Tables of long-term memory."""

import sqlalchemy as sa
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE

from turnlog.projectors.engine.tables import INTERNAL, thread_table, timestamptz
from turnlog.projectors.models.memories.sql import ON_HEALTH

memories = thread_table(
    "memories",
    sa.Column("id", UUID_TYPE(as_uuid=True), primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the event that recorded it"),
    sa.Column("status", sa.Text, nullable=False, comment="valid, pending, closed, archived or forgotten"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("category", sa.Text),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("value", sa.Text),
    sa.Column(
        "terms",
        ARRAY(sa.Text),
        nullable=False,
        comment="search terms of the content, each as often as it occurs",
        info=INTERNAL,
    ),
    sa.Column("content_key", sa.LargeBinary, nullable=False, comment="SHA-256 of kind and normalised content"),
    sa.Column("dedupe_key", sa.Text, info=INTERNAL),
    sa.Column("strategy", sa.Text, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("rule", sa.Text),
    sa.Column("importance", sa.Float, nullable=False, comment="its value at importance_at; it decays from then on"),
    sa.Column("importance_at", timestamptz(), nullable=False),
    sa.Column("confidence", sa.Float, nullable=False),
    sa.Column("access_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("last_accessed_at", timestamptz()),
    sa.Column("valid_from", timestamptz(), nullable=False),
    sa.Column("valid_to", timestamptz()),
    sa.Column("replaced_by", UUID_TYPE(as_uuid=True)),
    sa.Column("closed_reason", sa.Text),
    sa.Column("expires_at", timestamptz()),
    sa.Column("created_at", timestamptz(), nullable=False, comment="time of the event that recorded it"),
    sa.Column("confirmed_at", timestamptz(), nullable=False, comment="when it was last said"),
    sa.Column("archived_at", timestamptz()),
    sa.Column(
        "sources", JSONB, nullable=False, comment="[{thread, seq, event_id, quote, said_at}], in the order of recording"
    ),
    sa.Column("entities", ARRAY(sa.Text), nullable=False),
    sa.Column("derivation", JSONB),
    sa.Column("embedding", HALFVEC()),
    sa.Column("embedding_model", sa.Text),
    sa.Column(
        "archived_reason",
        sa.Text,
        comment="the reason that a person gave for archiving it; NULL if the daily job archived it",
    ),
    sa.Column("metadata", JSONB, comment="a JSON object that the application chose"),
    thread="the user's memory thread, or the thread of a trial derivation",
)
sa.Index("memories_user", memories.c.tenant, memories.c.user_id)
# These indexes do not begin with tenant and thread, because Postgres would take such an index of a new table without
# statistics to be as good as the primary key, even if one user has 100,000 memories.
sa.Index("memories_dedupe", memories.c.thread_id, memories.c.dedupe_key)
sa.Index("memories_content", memories.c.thread_id, memories.c.content_key)
sa.Index("memories_replaced", memories.c.replaced_by, postgresql_where=memories.c.replaced_by.is_not(None))
sa.Index("memories_terms", memories.c.terms, postgresql_using="gin")
sa.Index("memories_entities", memories.c.entities, postgresql_using="gin")
sa.Index("memories_time", memories.c.thread_id, memories.c.valid_from)
sa.Index("memories_last_said", memories.c.thread_id, memories.c.confirmed_at)
sa.Index("memories_on_health", memories.c.thread_id, memories.c.confirmed_at, postgresql_where=sa.text(ON_HEALTH))
sa.Index("memories_unembedded", memories.c.seq, postgresql_where=memories.c.embedding.is_(None))
sa.Index("memories_model", memories.c.embedding_model, postgresql_where=memories.c.embedding_model.is_not(None))

memory_conflicts = thread_table(
    "memory_conflicts",
    sa.Column("conflict_id", UUID_TYPE(as_uuid=True), primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("memory_id", UUID_TYPE(as_uuid=True), nullable=False),
    sa.Column("against", ARRAY(UUID_TYPE(as_uuid=True)), nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("raised_at", timestamptz(), nullable=False),
    sa.Column("answer", sa.Text),
    sa.Column("answered_at", timestamptz()),
)
sa.Index("memory_conflicts_memory", memory_conflicts.c.memory_id)
sa.Index("memory_conflicts_against", memory_conflicts.c.against, postgresql_using="gin")

memory_compactions = thread_table(
    "memory_compactions",
    sa.Column("event_id", UUID_TYPE(as_uuid=True), primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("members", ARRAY(UUID_TYPE(as_uuid=True)), nullable=False),
    sa.Column("kept", UUID_TYPE(as_uuid=True)),
    sa.Column("made", UUID_TYPE(as_uuid=True)),
    sa.Column("similarity", sa.Float),
    sa.Column("compacted_at", timestamptz(), nullable=False),
    sa.Column("undone_at", timestamptz()),
)

memory_extractions = thread_table(
    "memory_extractions",
    sa.Column("conversation", sa.Text, primary_key=True),
    sa.Column("stage", sa.Text, primary_key=True),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("through_seq", sa.BigInteger, nullable=False, comment="last sequence that was searched for memories"),
    sa.Column("extractor", sa.Text, nullable=False),
    sa.Column("found", sa.Integer, nullable=False),
    sa.Column("stored", sa.Integer, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("extracted_at", timestamptz(), nullable=False),
)

user_preferences = thread_table(
    "user_preferences",
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("preferences", JSONB, nullable=False, comment="the preferences set by hand, by name"),
    sa.Column("set_at", timestamptz(), nullable=False),
)

entities = thread_table(
    "entities",
    sa.Column("type", sa.Text, primary_key=True),
    sa.Column("name_key", sa.Text, primary_key=True, comment="the name in normal form: case and width folded"),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("attributes", JSONB, nullable=False),
    sa.Column("relations", JSONB, nullable=False, comment="[{type, target}]"),
    sa.Column("sources", JSONB, nullable=False),
    sa.Column("mention_count", sa.Integer, nullable=False),
    sa.Column("first_seen_at", timestamptz(), nullable=False),
    sa.Column("last_seen_at", timestamptz(), nullable=False),
)
sa.Index("entities_user", entities.c.tenant, entities.c.user_id)
sa.Index(
    "entities_full",
    entities.c.tenant,
    entities.c.thread_id,
    postgresql_where=sa.text("jsonb_array_length(sources) >= 100"),
)
sa.Index(
    "entities_sources",
    sa.func.jsonb_path_query_array(entities.c.sources, sa.text("'$[*].event_id'")),
    postgresql_using="gin",
)

forgotten_turns = thread_table(
    "forgotten_turns",
    sa.Column("event_id", UUID_TYPE(as_uuid=True), primary_key=True),
    comment="Turns from which a memory was forgotten. No entity contains their words.",
)
