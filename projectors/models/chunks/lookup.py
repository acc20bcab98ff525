"""Reads chunks for recall: defines the scope and reads all chunks of a small scope; candidates.py reads large
scopes."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.events.local_time import with_offset
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.candidate_search import SearchScope
from turnlog.projectors.models.chunks.chunking import topic_tag
from turnlog.projectors.models.conversation.forks import Parents, parents

WHOLE_SCOPE_UP_TO = 2_000
END = 2**62  # larger than every sequence
FOUND = (
    "v.thread_id, v.id, v.seqs, v.event_ids, v.source_ids, v.speaker, v.chunk, v.terms, v.created_at, v.role, "
    "v.utc_offset"
)

_SAID_BY = (
    " AND (lower(v.speaker) = lower(%(speaker)s::text) OR (v.user_id = %(speaker)s::text AND v.speaker = 'user'))"
)
AT_ONCE = 100  # how many chunks are read or indexed before other tasks run
_THROUGH = "(%(through)s::bigint[])[array_position(%(lineage)s::text[], v.thread_id)]"

Key = tuple[str, int, int, str]  # (thread, seq, piece, id): the order of a conversation


@dataclass(frozen=True, slots=True)
class Scope:
    """The chunks to search: those of one thread, or of all threads of a user, in one tenant.

    topic: selects only chunks with this topic, ignoring case. speaker: selects only the words of a speaker with this
    name, ignoring case, or of the user with this id. parents: for a fork, (thread, last sequence that belongs to the
    fork) of each parent; None until `with_parents` adds them.
    """

    tenant: str
    thread: str | None = None
    user: str | None = None
    topic: str | None = None
    speaker: str | None = None
    parents: Parents | None = None

    @property
    def where(self) -> str:
        """Returns the condition on rows `v` of memory_vectors."""
        of_topic = "" if self.topic is None else " AND v.topics @> ARRAY[%(topic)s::text]"
        return f"{self._place}{of_topic}{'' if self.speaker is None else _SAID_BY}"

    @property
    def _place(self) -> str:
        if self.thread is None:
            return "v.tenant = %(tenant)s AND v.user_id = %(user)s"
        if not self.parents:
            return "v.tenant = %(tenant)s AND v.thread_id = %(thread)s"
        return f"v.tenant = %(tenant)s AND v.thread_id = ANY(%(lineage)s::text[]) AND v.seq <= {_THROUGH}"

    @property
    def turns(self) -> str:
        """Returns SQL for the number of turns of a row `v` that are in the scope and before %(until)s. Turns of a
        parent after the fork do not count."""
        last = f"least(%(until)s::bigint - 1, {_THROUGH})" if self.parents else "%(until)s::bigint - 1"
        return f"width_bucket({last}, v.seqs)"

    @property
    def searched(self) -> SearchScope:
        return SearchScope("memory_vectors", "v", self.where, self.params)

    @property
    def params(self) -> dict[str, Any]:
        lineage = (*(self.parents or ()), (self.thread, END))
        return {
            "tenant": self.tenant,
            "thread": self.thread,
            "user": self.user,
            "topic": topic_tag(self.topic or ""),
            "speaker": self.speaker,
            "lineage": [thread for thread, _ in lineage],
            "through": [through for _, through in lineage],
        }


async def with_parents(conn: Connection, scope: Scope) -> Scope:
    """Returns the scope; for a fork it includes the turns that the parents had when the fork began."""
    if scope.thread is None or scope.parents is not None:
        return scope
    return replace(scope, parents=await parents(conn, scope.tenant, scope.thread))


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk as recall shows it. seqs, event_ids, source_ids: one entry for each turn that contains the chunk, oldest
    first."""

    thread: str
    id: str
    seqs: list[int]
    event_ids: list[UUID]
    source_ids: list[str | None]
    speaker: str
    text: str
    terms: list[str]
    created_at: datetime
    role: str


async def topics_in(conn: Connection, scope: Scope, most: int) -> list[str]:
    """Returns up to `most` topics of a scope's chunks, the most frequent first."""
    rows = await conn.execute(
        f"SELECT topic FROM ({scope.searched.rows('unnest(v.topics) AS topic')}) tagged "
        f"GROUP BY topic ORDER BY count(*) DESC, topic LIMIT {most:d}".encode(),
        scope.params,
    )
    return [str(topic) for (topic,) in await rows.fetchall()]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Counts of a scope's chunks before a sequence; they change whenever these chunks or their vectors change. large:
    True if the scope has more than WHOLE_SCOPE_UP_TO chunks; then the counts are not reliable."""

    chunks: int = 0
    embedded: int = 0
    last_seq: int = 0
    turns: int = 0
    large: bool = False


@dataclass(frozen=True, slots=True)
class KnownChunks:
    """The state of a scope that a reader knows. through: the last known turn of each thread. unembedded: ids of chunks
    without a vector. stamp: the counts of the chunks before the sequence `until`."""

    through: Mapping[str, int]
    unembedded: Sequence[str]
    stamp: Stamp = Stamp()
    until: int = END


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A chunk as it is read for an index. key: its position in the conversation. vector: in halfvec_send's form."""

    key: Key
    chunk: Found
    vector: bytes | None


async def chunks_beyond(
    conn: Connection, scope: Scope, model: str | None, known: KnownChunks
) -> tuple[Stamp, list[ChunkRow]]:
    """Returns, from one snapshot, the stamp of a scope before `known.until`, and the chunks that are new, were repeated
    or got a vector since `known` was read. Returns no chunks if the scope is large or the stamp equals known.stamp.
    Chunks that were deleted or tagged since then change only the stamp."""
    # OFFSET 0 keeps the condition on `now` inside, so that Postgres reads the chunks only if the stamp has changed.
    counts = f"""count(*) FILTER (WHERE earlier) AS chunks,
        count(*) FILTER (WHERE earlier AND embedding_model = %(model)s) AS embedded,
        coalesce(max(seq) FILTER (WHERE earlier), 0) AS last_seq, coalesce(sum(turns), 0)::bigint AS turns,
        count(*) > {WHOLE_SCOPE_UP_TO} AS large"""
    first_rows = (
        f"{scope.searched.rows(f'v.embedding_model, v.seq, v.seq < %(until)s AS earlier, {scope.turns} AS turns')} "
        f"LIMIT {WHOLE_SCOPE_UP_TO + 1}"
    )
    rows = await conn.execute(
        f"""SELECT now.*, found.*
        FROM (SELECT {counts} FROM ({first_rows}) first_rows) now LEFT JOIN LATERAL (
          SELECT {FOUND}, v.seq, v.piece, CASE WHEN v.embedding_model = %(model)s THEN halfvec_send(v.embedding) END
          FROM memory_vectors v LEFT JOIN unnest(%(threads)s::text[], %(last)s::bigint[]) known (thread, last)
          ON known.thread = v.thread_id WHERE {scope.where} AND NOT now.large
          AND (now.chunks, now.embedded, now.last_seq, now.turns)
            <> (%(chunks)s::bigint, %(embedded)s::bigint, %(last_seq)s::bigint, %(turns)s::bigint)
          AND (v.seqs[cardinality(v.seqs)] > coalesce(known.last, 0)
            OR v.embedding_model = %(model)s AND v.id = ANY(%(unembedded)s::text[]))
          OFFSET 0) found ON true""".encode(),
        {
            **scope.params,
            **asdict(known.stamp),
            "until": known.until,
            "model": model,
            "threads": list(known.through),
            "last": list(known.through.values()),
            "unembedded": list(known.unembedded),
        },
        binary=True,
    )
    stamp, chunks = Stamp(), list[ChunkRow]()
    while some := await rows.fetchmany(AT_ONCE):
        stamp = Stamp(*some[0][:5])
        for row in some if some[0][5] is not None else ():
            chunk = found_chunk(row[5:16], scope)
            chunks.append(ChunkRow((chunk.thread, row[16], row[17], chunk.id), chunk, row[18]))
        await asyncio.sleep(0)  # let other tasks run
    return stamp, chunks


async def chunks_of_user(conn: Connection, tenant: str, user: str, ids: Sequence[str]) -> list[Found]:
    """Returns the user's chunks with these ids, in the order of the ids, without chunks of deleted threads."""
    if not ids:
        return []
    scope = Scope(tenant, user=user)
    rows = await conn.execute(
        f"SELECT {FOUND} FROM memory_vectors v WHERE {scope.where} AND v.id = ANY(%(ids)s) AND EXISTS "
        "(SELECT FROM thread_activity t WHERE t.tenant = v.tenant AND t.thread_id = v.thread_id)".encode(),
        {**scope.params, "ids": list(ids)},
    )
    return sorted((found_chunk(row, scope) for row in await rows.fetchall()), key=lambda chunk: ids.index(chunk.id))


def found_chunk(row: Sequence[Any], scope: Scope) -> Found:
    """Makes a chunk from a row of the columns FOUND, without turns outside of the scope."""
    chunk = Found(*row[:10])
    chunk = replace(chunk, created_at=with_offset(chunk.created_at, row[10])) if row[10] else chunk
    return _within(chunk, dict(scope.parents or ()).get(row[0]))


def _within(chunk: Found, through: int | None) -> Found:
    """Returns the chunk without turns after the sequence `through`, because a parent may have repeated the chunk after
    the fork."""
    if through is None or chunk.seqs[-1] <= through:
        return chunk
    count = bisect_right(chunk.seqs, through)
    return replace(
        chunk, seqs=chunk.seqs[:count], event_ids=chunk.event_ids[:count], source_ids=chunk.source_ids[:count]
    )


_EPISODES_OF = """
SELECT f.thread, f.seq, e.question_seq, e.answer_seq
FROM unnest(%(threads)s::text[], %(seqs)s::bigint[]) AS f (thread, seq) CROSS JOIN LATERAL (
  SELECT question_seq, answer_seq FROM memory_episodes
  WHERE tenant = %(tenant)s AND thread_id = f.thread AND question_seq <= f.seq
  ORDER BY question_seq DESC LIMIT 1) e
WHERE e.answer_seq >= f.seq"""


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """The sequences of an episode, from its question to the last turn of the answer; tool results may be between
    them."""

    question_seq: int
    answer_seq: int


async def episodes_of(
    conn: Connection, tenant: str, turns: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], EpisodeSpan]:
    """Returns the episode of each turn, by (thread, seq); turns that belong to no episode are left out."""
    rows = await conn.execute(
        _EPISODES_OF,
        {"tenant": tenant, "threads": [thread for thread, _ in turns], "seqs": [seq for _, seq in turns]},
    )
    return {(thread, seq): EpisodeSpan(question, answer) for thread, seq, question, answer in await rows.fetchall()}
