"""Reads chunks for recall: the scope, and all chunks of a small one (of a large one: candidates.py)."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from turnlog.events.local_time import with_offset
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.candidate_search import SearchScope, decode_vectors
from turnlog.projectors.models.chunks.chunking import topic_tag
from turnlog.projectors.models.conversation.forks import parents

WHOLE_SCOPE_UP_TO = 2_000
FOUND = (
    "v.thread_id, v.id, v.seqs, v.event_ids, v.source_ids, v.speaker, v.chunk, v.terms, v.created_at, v.role, "
    "v.utc_offset"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The chunks to search: those of one thread, or of all threads of a user, in one tenant.

    topic: only chunks with this topic, in any case.
    parents: of a fork, (thread, last sequence that belongs to the fork); `with_parents` adds them.
    """

    tenant: str
    thread: str | None = None
    user: str | None = None
    topic: str | None = None
    parents: tuple[tuple[str, int], ...] = ()

    @property
    def where(self) -> str:
        """The condition on rows `v` of memory_vectors."""
        return self._place if self.topic is None else f"{self._place} AND v.topics @> ARRAY[%(topic)s::text]"

    @property
    def _place(self) -> str:
        if self.thread is None:
            return "v.tenant = %(tenant)s AND v.user_id = %(user)s"
        if not self.parents:
            return "v.tenant = %(tenant)s AND v.thread_id = %(thread)s"
        through = "(%(through)s::bigint[])[array_position(%(lineage)s::text[], v.thread_id)]"
        return f"v.tenant = %(tenant)s AND v.thread_id = ANY(%(lineage)s::text[]) AND v.seq <= {through}"

    @property
    def searched(self) -> SearchScope:
        return SearchScope("memory_vectors", "v", self.where, self.params)

    @property
    def params(self) -> dict[str, Any]:
        lineage = (*self.parents, (self.thread, 2**62))
        return {
            "tenant": self.tenant,
            "thread": self.thread,
            "user": self.user,
            "topic": topic_tag(self.topic or ""),
            "lineage": [thread for thread, _ in lineage],
            "through": [through for _, through in lineage],
        }


async def with_parents(conn: Connection, scope: Scope) -> Scope:
    """Returns the scope, for a fork with what its parents contained when it began."""
    if scope.thread is None:
        return scope
    return replace(scope, parents=await parents(conn, scope.tenant, scope.thread))


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk as recall shows it. seqs, event_ids, source_ids: of the turns that contain it, oldest first."""

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


@dataclass(frozen=True, slots=True)
class Columns:
    """Chunks sorted by (thread, seq, piece)."""

    chunks: list[Found]
    vectors: NDArray[np.float32] | None

    def replacing(self, threads: Collection[str], new: "Columns") -> "Columns":
        """Returns these columns with the chunks of some threads replaced."""
        kept = [number for number, chunk in enumerate(self.chunks) if chunk.thread not in threads]
        chunks = [*(self.chunks[number] for number in kept), *new.chunks]
        order = sorted(range(len(chunks)), key=lambda number: chunks[number].thread)
        vectors = [None if self.vectors is None else self.vectors[kept], new.vectors]
        width = next((some.shape[1] for some in vectors if some is not None), None)
        if width is None:
            return Columns([chunks[number] for number in order], None)
        nothing = np.full((len(chunks), width), np.nan, dtype=np.float32)
        for some, at in zip(vectors, (slice(len(kept)), slice(len(kept), None)), strict=True):
            if some is not None:
                nothing[at] = some
        return Columns([chunks[number] for number in order], nothing[order])


@dataclass(frozen=True, slots=True)
class Stamp:
    """Counts that change whenever the chunks or vectors of a scope do; of a large scope only `large` is reliable."""

    chunks: int
    embedded: int
    last_seq: int
    turns: int

    @property
    def large(self) -> bool:
        return self.chunks > WHOLE_SCOPE_UP_TO


async def topics_in(conn: Connection, scope: Scope, most: int) -> list[str]:
    """Returns the topics of a scope's chunks, those of most chunks first."""
    rows = await conn.execute(
        f"SELECT topic FROM ({scope.searched.rows('unnest(v.topics) AS topic')}) tagged "
        f"GROUP BY topic ORDER BY count(*) DESC, topic LIMIT {most:d}".encode(),
        scope.params,
    )
    return [str(topic) for (topic,) in await rows.fetchall()]


class Stamps(NamedTuple):
    """Holds the stamps of all chunks of a scope, and of those before a sequence with their turns before it."""

    whole: Stamp
    before: Stamp


async def scope_stamps(conn: Connection, scope: Scope, model: str | None, before_seq: int | None = None) -> Stamps:
    """Returns the stamps of a scope; reads at most WHOLE_SCOPE_UP_TO + 1 chunks. before_seq: None for all."""
    rows = await conn.execute(
        f"SELECT {_stamp('true', 'cardinality(seqs)')}, "
        # The turns of a chunk are in order, so this counts those before the sequence.
        f"{_stamp('seq < %(before)s', 'width_bucket(%(before)s::bigint - 1, seqs)')} "
        f"FROM ({scope.searched.rows('embedding_model, seq, seqs')} LIMIT {WHOLE_SCOPE_UP_TO + 1}) first_rows".encode(),
        {**scope.params, "model": model, "before": 2**62 if before_seq is None else before_seq},
    )
    found = await rows.fetchone()
    assert found is not None
    numbers = [int(number) for number in found]
    return Stamps(Stamp(*numbers[:4]), Stamp(*numbers[4:]))


def _stamp(where: str, turns: str) -> str:
    return (
        f"count(*) FILTER (WHERE {where}), count(*) FILTER (WHERE {where} AND embedding_model = %(model)s), "
        f"coalesce(max(seq) FILTER (WHERE {where}), 0), coalesce(sum({turns}) FILTER (WHERE {where}), 0)"
    )


async def thread_stamps(conn: Connection, scope: Scope, model: str | None) -> dict[str, Stamp]:
    """Returns the stamp of each thread of a small scope."""
    rows = await conn.execute(
        f"SELECT thread_id, {_stamp('true', 'cardinality(seqs)')} "
        f"FROM ({scope.searched.rows('thread_id, embedding_model, seq, seqs')}) chunks GROUP BY thread_id".encode(),
        {**scope.params, "model": model},
    )
    return {str(row[0]): Stamp(*map(int, row[1:])) for row in await rows.fetchall()}


def changed_threads(columns: Columns, now: Mapping[str, Stamp]) -> set[str]:
    """Returns the threads whose chunks or vectors differ from these columns."""
    embedded = np.zeros(len(columns.chunks)) if columns.vectors is None else ~np.isnan(columns.vectors[:, 0])
    then, start = dict[str, Stamp](), 0
    for thread, group in groupby(columns.chunks, key=attrgetter("thread")):
        seqs = [chunk.seqs for chunk in group]
        end = start + len(seqs)
        last, turns = max(some[0] for some in seqs), sum(map(len, seqs))
        then[thread] = Stamp(len(seqs), int(embedded[start:end].sum()), last, turns)
        start = end
    return {thread for thread in then.keys() | now.keys() if then.get(thread) != now.get(thread)}


async def whole_scope(
    conn: Connection, scope: Scope, model: str | None, threads: Collection[str] | None = None
) -> Columns:
    """Returns all chunks of the scope, or those of some threads of it."""
    some = "" if threads is None else " AND v.thread_id = ANY(%(threads)s::text[])"
    rows = await conn.execute(
        scope.searched.rows(
            f"{FOUND}, CASE WHEN v.embedding_model = %(model)s THEN halfvec_send(v.embedding) END, v.seq, v.piece"
        ).encode()
        + some.encode(),
        {**scope.params, "model": model, "threads": list(threads or ())},
        binary=True,
    )
    found = sorted(await rows.fetchall(), key=lambda row: (row[0], row[12], row[13], row[1]))
    return Columns([found_chunk(row, scope) for row in found], decode_vectors([row[11] for row in found]))


async def chunks_of_user(conn: Connection, tenant: str, user: str, ids: Sequence[str]) -> list[Found]:
    """Returns the user's chunks with these ids, in their order; those of deleted threads are left out."""
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
    """Returns the chunk in a row of the columns FOUND, without turns outside of the scope."""
    found = Found(*row[:10])
    found = replace(found, created_at=with_offset(found.created_at, row[10])) if row[10] else found
    return _within(found, dict(scope.parents).get(row[0]))


def _within(chunk: Found, through: int | None) -> Found:
    """Returns the chunk without turns after a sequence: a parent may have repeated it after the fork."""
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
    """An episode from its question to the last turn of the answer; tool results may be in between."""

    question_seq: int
    answer_seq: int


async def episodes_of(
    conn: Connection, tenant: str, turns: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], EpisodeSpan]:
    """Returns the episode of each turn, given and returned as (thread, seq); turns of no episode are left out."""
    rows = await conn.execute(
        _EPISODES_OF,
        {"tenant": tenant, "threads": [thread for thread, _ in turns], "seqs": [seq for _, seq in turns]},
    )
    return {(thread, seq): EpisodeSpan(question, answer) for thread, seq, question, answer in await rows.fetchall()}
