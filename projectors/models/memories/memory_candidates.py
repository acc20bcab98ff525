"""Finds candidates for a question among a user's memories, in four ways: by terms, vector, entities and time.

Input: a scope and a question. Output: up to a few hundred candidates from all ways together, with the values that all
ways need for ranking, so that no second query is necessary. All ways are parts of one statement (one round trip);
candidate_search.py implements the searches by terms and by vector.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from psycopg.rows import class_row

from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.candidate_search import SearchScope, VectorScan, use_vector_scan
from turnlog.projectors.models.memories.lookup import IN_THREAD, VALID_AT
from turnlog.projectors.models.memories.text import name_key

WHOLE_UP_TO = 500  # in a thread with at most this many memories, all are candidates
COUNT_UP_TO = 2_000  # more memories are not counted but estimated by counting one id (a hash) in PROBE_SHARE
PROBE_SHARE, PROBE_BELOW = 512, UUID(int=2**128 // 512)
SAMPLE = 200  # random memories, for the frequency of terms and the usual cosine of unrelated texts
# The rarest terms are looked up alone if at most RARE_UP_TO memories probably contain them; common terms in pairs.
TERMS_ALONE, RARE_UP_TO, PAIRS = 8, 1_000, 6
MANY = 10_000  # in a thread with at least this many memories, each lookup returns fewer candidates
OTHER_WORD = 0.5  # weight of a synonym of one of the question's words
MAX_NAME_WORDS = 4
MAX_NAME_CHARS = 8
MAX_QUESTION_CHARS = 400
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # characters that a model's arguments may contain, but names never do


@dataclass(frozen=True, slots=True)
class MemoryScope:
    """The memories to search. thread: the user's memory thread, also that of a trial derivation.

    as_of: selects memories that were valid at this time, including superseded and archived ones. history: selects
    memories of any time. Without both, memories that are valid at `now` are selected. Pending and forgotten memories
    are never selected. kinds: () for all. min_importance: the least current importance, 0 to 1.
    """

    tenant: str
    thread: str
    now: datetime
    as_of: datetime | None = None
    history: bool = False
    kinds: tuple[str, ...] = ()
    min_importance: float = 0.0

    @property
    def where(self) -> str:
        return self._held + (" AND m.kind = ANY(%(kinds)s)" if self.kinds else "")

    @property
    def _held(self) -> str:
        if self.history:
            return f"{IN_THREAD} AND m.status IN ('valid', 'archived', 'closed')"
        states = "('valid')" if self.as_of is None else "('valid', 'archived', 'closed')"
        return f"{IN_THREAD} AND m.status IN {states} AND m.closed_reason IS DISTINCT FROM 'rejected' AND {VALID_AT}"

    @property
    def searched(self) -> SearchScope:
        return SearchScope("memories", "m", self.where, self.params)

    @property
    def params(self) -> dict[str, Any]:
        return {"tenant": self.tenant, "thread": self.thread, "at": self.as_of or self.now, "kinds": list(self.kinds)}


@dataclass(frozen=True, slots=True)
class MemoryQuery:
    """A question to search with. terms: its distinct terms. vector: its vector, made by `model`. spans: [from, to) of
    the dates that it names. others: synonyms of some of the terms."""

    terms: Sequence[str]
    vector: NDArray[np.float32] | None = None
    model: str | None = None
    spans: Sequence[tuple[datetime, datetime]] = ()
    others: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """The size of a memory thread. memories: their number, estimated above COUNT_UP_TO. dimensions: of the model's
    vectors, None without vectors. names: the user's entities that the question names."""

    memories: int
    dimensions: int | None
    names: tuple[str, ...]


class Caps(NamedTuple):
    """The maximum number of candidates for a term, for a pair of terms, for the vector, and for each other way."""

    term: int
    pair: int
    near: int
    way: int

    @classmethod
    def of(cls, size: ThreadSize) -> "Caps":
        return cls(200, 30, 40, 60) if size.memories < MANY else cls(100, 20, 30, 40)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory with its values for ranking.

    matched: the summed rarity of the question's terms that the memory contains. sought: the same sum for all of the
    question's terms. length: the memory's number of terms. cosine: the similarity to the question. usual, spread: mean
    and standard deviation of the sample's cosines. All three are None without a vector. named: how many of the
    question's entities the memory is about. dated: whether the memory was said, or became valid, in a time that the
    question names.
    """

    id: UUID
    importance: float
    importance_at: datetime
    access_count: int
    last_accessed_at: datetime | None
    confidence: float
    confirmed_at: datetime
    expires_at: datetime | None
    matched: float
    sought: float
    length: int
    cosine: float | None
    usual: float | None
    spread: float | None
    named: int
    dated: bool


async def thread_size(conn: Connection, scope: MemoryScope, text: str, model: str | None) -> ThreadSize:
    """Returns the sizes that the search depends on, by one small query."""
    rows = await conn.execute(
        f"""
        SELECT (SELECT count(*) FROM (SELECT FROM memories m WHERE {IN_THREAD} LIMIT {COUNT_UP_TO + 1}) x),
          (SELECT count(*) FROM memories m WHERE {IN_THREAD} AND id < %(below)s),
          (SELECT vector_dims(embedding) FROM (
            SELECT embedding, embedding_model FROM memories m WHERE {IN_THREAD} ORDER BY id LIMIT {SAMPLE}) x
            WHERE embedding_model = %(model)s LIMIT 1),
          ARRAY(SELECT DISTINCT name FROM entities m WHERE {IN_THREAD} AND name_key = ANY(%(keys)s))""".encode(),
        {**scope.params, "model": model, "below": PROBE_BELOW, "keys": name_keys(text)},
    )
    row = await rows.fetchone()
    assert row is not None
    counted, probed, dimensions, names = row
    return ThreadSize(
        counted if counted <= COUNT_UP_TO else max(counted, probed * PROBE_SHARE), dimensions, tuple(names)
    )


async def candidates(conn: Connection, scope: MemoryScope, asked: MemoryQuery, size: ThreadSize) -> list[Candidate]:
    """Returns, in no order, all memories of a small thread; of a larger thread the best candidates of each way."""
    params = {
        **scope.params,
        "terms": [*asked.terms, *asked.others],
        "shares": [1.0] * len(asked.terms) + [OTHER_WORD] * len(asked.others),
        "names": _spellings(size.names),
        "size": size.memories,
        "model": asked.model,
        "vector": None if asked.vector is None else HalfVector(asked.vector),
        "first": [first for first, _ in asked.spans],
        "end": [end for _, end in asked.spans],
    }
    caps = Caps.of(size)
    async with conn.pipeline(), conn.transaction():
        await use_vector_scan(conn, VectorScan("strict_order", caps.near))
        cursor = conn.cursor(row_factory=class_row(Candidate), binary=True)
        await cursor.execute(_query(scope, asked, size, caps).encode(), params)
    return await cursor.fetchall()


def _query(scope: MemoryScope, asked: MemoryQuery, size: ThreadSize, caps: Caps) -> str:
    """Returns the SQL statement, a chain of named parts.

    few: the sample. asked: the question's terms with the number of memories that probably contain them; taken: whether
    the term is looked up alone. said: the memories that contain these terms. weights: the rarity of each term, exact if
    the term was looked up and fewer memories than the cap contain it, else estimated. found: the candidates of all
    ways. at: the ctid of a row, the fastest way to read the row again within one statement.
    """
    rows = scope.searched
    cosine = _cosine(rows, asked)
    whole = size.memories <= WHOLE_UP_TO
    cap = WHOLE_UP_TO if whole else caps.term
    taken = f"expected = 0 OR place = 1 OR place <= {TERMS_ALONE} AND expected <= {RARE_UP_TO}"
    ways = [rows.rows("m.ctid AS at")] if whole else _ways(rows, asked, size, caps)
    named = "cardinality(ARRAY(SELECT unnest(m.entities) INTERSECT SELECT unnest(%(names)s::text[])))"
    return f"""
    WITH few AS MATERIALIZED (SELECT terms, embedding, embedding_model FROM memories m WHERE {IN_THREAD}
        ORDER BY id LIMIT {SAMPLE}),
      seen AS MATERIALIZED (SELECT term, share, %(size)s::float / greatest((SELECT count(*) FROM few), 1)
          * (SELECT count(*) FROM few WHERE term = ANY(terms)) AS expected
        FROM unnest(%(terms)s::text[], %(shares)s::float[]) q (term, share)),
      asked AS MATERIALIZED (SELECT term, share, expected, {"true" if whole else taken} AS taken FROM (SELECT *,
        row_number() OVER (PARTITION BY expected > 0 ORDER BY expected, length(term) DESC, term) AS place FROM seen) s),
      said AS MATERIALIZED (SELECT q.term, h.* FROM asked q, LATERAL (
        {rows.with_terms("id, terms, m.ctid AS at", "ARRAY[q.term]", cap)}) h WHERE q.taken),
      weights AS MATERIALIZED (SELECT term, expected, NOT taken OR found = {cap} AS often,
          share * ln(1 + %(size)s / CASE WHEN taken AND found < {cap} THEN found
            ELSE greatest(expected, found, %(size)s / {2.0 * SAMPLE}) END) AS weight
        FROM asked LEFT JOIN (SELECT term, count(*)::float AS found FROM said GROUP BY term) s USING (term)
        WHERE NOT taken OR found > 0),
      found AS MATERIALIZED ({" UNION ".join(f"({way})" for way in ways)}),
      sample AS MATERIALIZED (SELECT avg(cosine) AS usual, stddev_pop(cosine) AS spread
        FROM (SELECT {cosine} AS cosine FROM few m) s)
    SELECT m.id, importance, importance_at, access_count, last_accessed_at, confidence, confirmed_at,
      expires_at, coalesce((SELECT sum(weight) FROM weights WHERE term = ANY(m.terms)), 0) AS matched,
      coalesce((SELECT sum(weight) FROM weights), 0) AS sought, cardinality(m.terms) AS length,
      {cosine} AS cosine, usual, spread,
      {named if size.names else 0} AS named, {f"EXISTS ({_DATED})" if asked.spans else "false"} AS dated
    FROM found JOIN memories m ON m.ctid = found.at AND {IN_THREAD}, sample"""


_SPANS = "unnest(%(first)s::timestamptz[], %(end)s::timestamptz[]) s (first, last)"
# A merged memory is valid since the merge but was said before it.
_DATED = f"""SELECT FROM {_SPANS} WHERE least(m.valid_from, m.confirmed_at) >= s.first
        AND least(m.valid_from, m.confirmed_at) < s.last
      OR m.confirmed_at >= s.first AND m.confirmed_at < s.last"""


def _ways(rows: SearchScope, asked: MemoryQuery, size: ThreadSize, caps: Caps) -> list[str]:
    """Returns, for each way to find candidates that the question allows, a query that selects ctids."""
    by_words = (
        "SELECT at FROM (SELECT DISTINCT ON (at) * FROM said) s ORDER BY "
        f"(SELECT sum(weight) FROM weights w WHERE w.term = ANY(s.terms)) DESC, id LIMIT {caps.way}"
    )
    by_two = (
        "SELECT h.at FROM (SELECT a.term AS one, b.term AS other FROM weights a JOIN weights b ON a.term < b.term "
        f"WHERE a.often AND b.often ORDER BY a.weight + b.weight DESC, a.term, b.term LIMIT {PAIRS}) q, LATERAL ("
        f"{rows.with_terms('m.ctid AS at', 'ARRAY[q.one, q.other]', caps.pair)}) h"
    )
    by_vector = [] if asked.vector is None else [rows.nearest("m.ctid", len(asked.vector), caps.near)]
    by_name = [f"{rows.rows('m.ctid')} AND entities && %(names)s::text[] LIMIT {caps.way}"] if size.names else []
    by_time = [
        f"SELECT h.at FROM {_SPANS}, LATERAL ({rows.rows('m.ctid AS at')} "
        f"AND m.{begin} >= s.first AND m.{begin} < s.last ORDER BY m.{begin} DESC LIMIT {caps.way}) h"
        for begin in ("valid_from", "confirmed_at")
    ]
    return [by_words, by_two, *by_vector, *by_name, *(by_time if asked.spans else [])]


def _cosine(rows: SearchScope, asked: MemoryQuery) -> str:
    """Returns SQL for a row's cosine: NULL without a vector, and for a vector of zeros, whose cosine is NaN."""
    if asked.vector is None:
        return "NULL::float"
    return f"CASE WHEN {rows.is_embedded} THEN nullif((1 - ({rows.distance(len(asked.vector))})), 'NaN') END"


def _spellings(names: Iterable[str]) -> list[str]:
    """Returns the spellings that memories may use for these names. An entity keeps its first spelling, but a memory has
    the spelling of its turn."""
    forms = {form for name in names for form in (name, name_key(name))}
    return sorted(forms | {form.title() for form in forms} | {form.upper() for form in forms})


def name_keys(text: str) -> list[str]:
    """Returns the normal forms of all possible names in a question: runs of up to four words, or of up to eight Chinese
    characters."""
    text = _UNSTORABLE.sub(" ", text[:MAX_QUESTION_CHARS])
    words = [word.strip("\"'()[]{}<>,.;:!?“”‘’…") for word in text.split()]
    runs = {" ".join(words[at : at + n]) for at in range(len(words)) for n in range(1, MAX_NAME_WORDS + 1)}
    runs |= {word[:-2] for word in runs if word.endswith(("'s", "’s"))}
    if not text.isascii():
        runs |= {text[at : at + n] for at in range(len(text)) for n in range(2, MAX_NAME_CHARS + 1)}
    return sorted({name_key(run) for run in runs if run.strip()})
