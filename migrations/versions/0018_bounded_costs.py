"""Bounds the projectors' cost of an event, so that it does not grow with the thread."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
IS_PARKED = sa.text("status = 'parked'")
IS_POISON = sa.text("status = 'parked' AND reason = 'poison'")
HAS_NAME = sa.text("role = 'user' AND name IS NOT NULL")
IS_PRUNING = sa.text("channel = 'pruned_through' AND type = 'turnlog.seq' AND checkpoint_ns = ''")
# The rows equal those of a rebuild: the last question of each thread, and the first 100 turns of each chunk.
LAST_QUESTIONS = """
INSERT INTO last_questions (tenant, thread_id, seq, chunk)
SELECT DISTINCT ON (tenant, thread_id) tenant, thread_id, said, id FROM memory_vectors, unnest(seqs) said
WHERE role = 'user' AND piece = 0 ORDER BY tenant, thread_id, said DESC"""
FIRST_TURNS = """
UPDATE memory_vectors SET seqs = seqs[1:100], event_ids = event_ids[1:100], source_ids = source_ids[1:100]
WHERE cardinality(seqs) > 100"""


def upgrade() -> None:
    op.create_table(
        "last_questions",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False, comment="the user's last turn with text"),
        sa.Column("chunk", sa.Text, nullable=False, comment="its first chunk"),
    )
    op.execute(LAST_QUESTIONS)
    op.execute(FIRST_TURNS)
    poison = ["build", "partition", "tenant", "thread_token"]
    op.create_index("dead_letters_poison", "dead_letters", poison, postgresql_where=IS_POISON)
    op.create_index(
        "dead_letters_thread", "dead_letters", ["tenant", "thread_token", "seq"], postgresql_where=IS_PARKED
    )
    pruned: list[str | sa.TextClause] = ["tenant", "thread_id", sa.text("length(blob)"), "blob"]
    op.create_index("checkpoint_blobs_pruned", "checkpoint_blobs", pruned, postgresql_where=IS_PRUNING)
    names = ["tenant", "thread_id", "user_id", "name"]
    op.create_index("messages_names", "messages", names, postgresql_where=HAS_NAME)
    op.create_index("memory_conflicts_memory", "memory_conflicts", ["memory_id"])
    op.create_index("memory_conflicts_against", "memory_conflicts", ["against"], postgresql_using="gin")
    full = sa.text("jsonb_array_length(sources) >= 100")
    op.create_index("entities_full", "entities", ["tenant", "thread_id"], postgresql_where=full)
    turns = sa.text("jsonb_path_query_array(sources, '$[*].event_id')")
    op.create_index("entities_sources", "entities", [turns], postgresql_using="gin")
