"""memory_vectors: the deduplicated chunks of every turn with their topics and vectors; memory_episodes: the episodes.

Vectors are copied from the embedding cache when a chunks_embedded event names them, so a rebuild calls no model.
An episode is a question (the user's last turn before the answer) and its answer. It refers to two chunks and repeats
neither text nor vector.
A topic of a span of turns is added to the chunks that contain at least half as many of its words as the best chunk, and
to the other turns of their exchange (a user's turn and the turns that follow it). A span has up to 60 turns, and a tag
on all of them would be useless for searching. Only a topic whose words occur in no turn, as a model may phrase it, is
added to the entire span.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE

from turnlog.events.contracts import (
    ARCHIVING,
    REMOVALS,
    ChunksEmbedded,
    Recorded,
    ThreadArchived,
    ThreadRestored,
    TopicsTagged,
    TurnRecorded,
)
from turnlog.events.local_time import offset_of
from turnlog.projectors.engine.changes import Change, DeleteThread, Row, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import INTERNAL, thread_table, timestamptz, utc_offset_column
from turnlog.projectors.engine.writer import array_literal
from turnlog.projectors.models.chunks.chunking import MAX_TURNS, Chunk, chunks, fold, topic_tag
from turnlog.projectors.models.conversation.restored import cleared_before, restored_events
from turnlog.projectors.models.neighbours import neighbour_indexes
from turnlog.projectors.models.terms import terms

memory_vectors = thread_table(
    "memory_vectors",
    sa.Column("id", sa.Text, primary_key=True, comment="hash of tenant, thread and index_text"),
    sa.Column("user_id", sa.Text),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the first turn that contains it"),
    sa.Column("seqs", ARRAY(sa.BigInteger), nullable=False),
    sa.Column("event_ids", ARRAY(UUID_TYPE(as_uuid=True)), nullable=False),
    sa.Column("source_ids", ARRAY(sa.Text), nullable=False),
    sa.Column("piece", sa.Integer, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("speaker", sa.Text, nullable=False),
    sa.Column("chunk", sa.Text, nullable=False),
    sa.Column("index_text", sa.Text, nullable=False, comment="the text that is embedded", info=INTERNAL),
    sa.Column(
        "terms",
        ARRAY(sa.Text),
        nullable=False,
        comment="search terms of the chunk, each as often as it occurs",
        info=INTERNAL,
    ),
    sa.Column("topics", ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.Column("embedding", HALFVEC()),
    sa.Column("embedding_model", sa.Text),
    sa.Column("created_at", timestamptz(), nullable=False),
    utc_offset_column(),
)
# Ids are hashes, so a range of ids is a random sample: this index reads a user's sample, the primary key a thread's.
sa.Index("memory_vectors_user", *(memory_vectors.c[name] for name in ("tenant", "user_id", "id")))
sa.Index("memory_vectors_place", *(memory_vectors.c[name] for name in ("tenant", "thread_id", "seq", "piece", "id")))
sa.Index("memory_vectors_terms", memory_vectors.c.terms, postgresql_using="gin")
sa.Index("memory_vectors_topics", memory_vectors.c.topics, postgresql_using="gin")
sa.Index(
    "memory_vectors_unembedded",
    *(memory_vectors.c[name] for name in ("tenant", "thread_id", "seq")),
    postgresql_where=memory_vectors.c.embedding.is_(None),
)
sa.Index(
    "memory_vectors_model",
    *(memory_vectors.c[name] for name in ("embedding_model", "tenant", "thread_id")),
    postgresql_where=memory_vectors.c.embedding_model.is_not(None),
)

memory_episodes = thread_table(
    "memory_episodes",
    sa.Column("question_seq", sa.BigInteger, primary_key=True),
    sa.Column("question_chunk", sa.Text, nullable=False),
    sa.Column("answer_seq", sa.BigInteger, nullable=False),
    sa.Column("answer_chunk", sa.Text, nullable=False),
    sa.Column("created_at", timestamptz(), nullable=False),
)

# The last question of each thread, because its answer often comes in a later batch. Searching the thread's turns for
# the question would take longer with each turn.
last_questions = thread_table(
    "last_questions",
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the user's last turn with text"),
    sa.Column("chunk", sa.Text, nullable=False, comment="first chunk of that turn"),
)

TABLES = (memory_vectors, memory_episodes, last_questions)
HANDLED = frozenset({"turn_recorded", "topics_tagged", "chunks_embedded"})
COLUMNS = tuple(c.name for c in memory_vectors.columns if c.name not in ("topics", "embedding", "embedding_model"))
_SAID_AGAIN = tuple(
    (name, f"(t.{name} || excluded.{name})[:{MAX_TURNS}]") for name in ("seqs", "event_ids", "source_ids")
)
_HAS_ROOM = f"cardinality(t.seqs) < {MAX_TURNS}"
_EPISODE_COLUMNS = tuple(column.name for column in memory_episodes.columns)
_ANSWERED = tuple((name, f"excluded.{name}") for name in ("answer_seq", "answer_chunk", "created_at"))
_IS_LATER = "t.answer_seq < excluded.answer_seq"
_QUESTION_COLUMNS = tuple(column.name for column in last_questions.columns)
_ASKED = tuple((name, f"excluded.{name}") for name in ("seq", "chunk"))

_EPISODE = f"""
INSERT INTO memory_episodes AS t (tenant, thread_id, question_seq, question_chunk, answer_seq, answer_chunk, created_at)
SELECT tenant, thread_id, seq, chunk, %(seq)s, %(chunk)s, %(time)s FROM last_questions
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND seq < %(seq)s
ON CONFLICT (tenant, thread_id, question_seq) DO UPDATE
SET answer_seq = excluded.answer_seq, answer_chunk = excluded.answer_chunk, created_at = excluded.created_at
WHERE {_IS_LATER}"""

# turnlog's own events stay below these bounds, but other producers may publish larger events.
_WORDS_OF_TOPICS, _TAGGED_CHUNKS = 1_000, 2_000
# topics and words are parallel, with one entry for each word of each topic.
_TAG = f"""
WITH span AS (
  SELECT id, terms, count(*) FILTER (WHERE role = 'user' AND piece = 0) OVER (ORDER BY seq, piece, id) AS exchange
  FROM memory_vectors WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND seq BETWEEN %(first)s AND %(last)s
  ORDER BY seq, piece, id LIMIT {_TAGGED_CHUNKS}),
named AS (
  SELECT id, exchange, topic, count(*) FILTER (WHERE word = ANY(terms)) AS words
  FROM span, unnest(%(topics)s::text[], %(words)s::text[]) t (topic, word) GROUP BY id, exchange, topic),
near AS (SELECT *, max(words) OVER (PARTITION BY topic) AS most FROM named),
tagged AS (SELECT id, topic, bool_or(2 * words >= most) OVER (PARTITION BY topic, exchange) AS has_it FROM near),
found AS (SELECT id, array_agg(topic) AS topics FROM tagged WHERE has_it GROUP BY id)
UPDATE memory_vectors v
SET topics = ARRAY(SELECT DISTINCT topic FROM unnest(v.topics || found.topics) topic ORDER BY topic)
FROM found WHERE v.tenant = %(tenant)s AND v.thread_id = %(thread)s AND v.id = found.id"""

_EMBED = """
UPDATE memory_vectors v SET embedding = c.embedding, embedding_model = c.model FROM embedding_cache c
WHERE v.tenant = %(tenant)s AND v.thread_id = %(thread)s AND v.id = ANY(%(ids)s) AND v.seq < %(seq)s
AND v.embedding_model IS DISTINCT FROM c.model
AND c.model = %(model)s AND c.text_hash = sha256(convert_to(v.index_text, 'UTF8'))"""

NEIGHBOUR_INDEXES = neighbour_indexes(memory_vectors)


def project(batch: Sequence[Recorded]) -> list[Change]:
    """Applies turns first and then derived events. Derived events change only rows of earlier turns, so the size of
    batches does not matter."""
    first = batch[0].event
    if isinstance(first.data, ThreadArchived):
        return [DeleteThread(TABLES, first.tenant, first.thread)]
    if isinstance(first.data, ThreadRestored):
        back = restored_events(batch[0], HANDLED)
        return [*cleared_before(first, TABLES), *(project(back) if back else [])]
    turns = [(recorded, chunks(recorded)) for recorded in batch if isinstance(recorded.event.data, TurnRecorded)]
    derived = [recorded for recorded in batch if not isinstance(recorded.event.data, TurnRecorded)]
    changes = [_upsert(turns), *_episodes(turns), *(_update(recorded) for recorded in derived)]
    return [change for change in changes if change is not None]


def _upsert(turns: Sequence[tuple[Recorded, list[Chunk]]]) -> Change | None:
    about = {recorded.seq: recorded for recorded, _ in turns}
    folded = fold(chunk for _, turn_chunks in turns for chunk in turn_chunks)
    rows = [_row(chunk, about[chunk.seqs[0]]) for chunk in folded]
    return Upsert(memory_vectors, COLUMNS, rows, _SAID_AGAIN, _HAS_ROOM) if rows else None


def _row(chunk: Chunk, recorded: Recorded) -> Row:
    turn = recorded.event.data
    assert isinstance(turn, TurnRecorded)
    return (
        chunk.tenant,
        chunk.thread,
        chunk.id,
        recorded.event.user,
        chunk.seqs[0],
        array_literal(chunk.seqs),
        array_literal(chunk.event_ids),
        array_literal(chunk.source_ids),
        chunk.piece,
        turn.role,
        chunk.speaker,
        chunk.text,
        chunk.index_text,
        array_literal(chunk.terms),
        chunk.created_at,
        offset_of(chunk.created_at),
    )


def _episodes(turns: Sequence[tuple[Recorded, list[Chunk]]]) -> list[Change]:
    """Returns the changes that store each question with its last answer so far. The question of a batch's first answers
    may be in an earlier batch."""
    asked: dict[tuple[str, str], Row] = {}
    answered: dict[Row, Row] = {}
    earlier: dict[tuple[str, str], dict[str, Any]] = {}
    for recorded, turn_chunks in turns:
        event, turn = recorded.event, recorded.event.data
        if not turn_chunks or not isinstance(turn, TurnRecorded):
            continue
        place, said = (event.tenant, event.thread), (recorded.seq, turn_chunks[0].id)
        if turn.role == "user":
            asked[place] = said
        elif turn.role == "assistant" and place in asked:
            answered[place + asked[place]] = (*said, event.time)
        elif turn.role == "assistant":
            earlier[place] = dict(
                zip(("tenant", "thread", "seq", "chunk", "time"), (*place, *said, event.time), strict=True)
            )
    episodes = [question + answer for question, answer in answered.items()]
    questions = [place + said for place, said in asked.items()]
    return [
        *([Statement(_EPISODE, list(earlier.values()))] if earlier else []),
        Upsert(memory_episodes, _EPISODE_COLUMNS, episodes, _ANSWERED, _IS_LATER),
        Upsert(last_questions, _QUESTION_COLUMNS, questions, _ASKED, "t.seq < excluded.seq"),
    ]


def _update(recorded: Recorded) -> Change | None:
    event = recorded.event
    key = {"tenant": event.tenant, "thread": event.thread}
    match event.data:
        case TopicsTagged(topics=topics, derivation=d):
            pairs = (
                (tag, word) for tag in map(topic_tag, topics) if tag for word in dict.fromkeys(terms(tag)) or [tag]
            )
            words = list(islice(pairs, _WORDS_OF_TOPICS))
            span = {"first": d.from_seq, "last": min(d.through_seq, recorded.seq)}
            return Statement(
                _TAG, [{**key, **span, "topics": [tag for tag, _ in words], "words": [word for _, word in words]}]
            )
        case ChunksEmbedded(model=model, chunk_ids=ids):
            return Statement(_EMBED, [{**key, "model": model, "ids": list(ids), "seq": recorded.seq}])
    return None


VECTORS = Projection(
    "vectors",
    # Changes by version. 1: episodes name the first turn of a repeated question; 2: topics only on chunks that contain
    # their words, huge turns cut differently; 3: no chunks of turns that only repeat memory; 5: days by the speaker's
    # clock; 6: simplified characters, and pairs of characters
    6,
    TABLES,
    REMOVALS | ARCHIVING | HANDLED,
    project,
    last_sql=(NEIGHBOUR_INDEXES,),
    copied=TABLES,
)
