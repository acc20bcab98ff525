"""The likely part of a user's memories for a question: by words, by vector, by entities and by time (M7).

Each way brings at most a few hundred candidates, found by an index; what a candidate is worth in every way is then
said of each of them, so that ranking needs no second look. Every query names tenant and memory thread.
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

from turnlog.projectors.memory_lookup import HOLDS
from turnlog.projectors.memory_text import name_key
from turnlog.projectors.writer import Connection

# Up to so many memories all of them are candidates.
WHOLE_UP_TO = 500
COUNT_UP_TO = 2_000  # exactly; larger threads by the memories whose id, a hash, is one in so many
PROBE_SHARE, PROBE_BELOW = 512, UUID(int=2**128 // 512)
# Random memories that show how often a term is said, and what a cosine of this model is like for what has nothing to
# do with it.
SAMPLE = 200
# The memories of the rarest terms are looked at, up to a number each: a term that more of them have tells little, and
# finding those costs the more the more there are. Common terms are looked up in pairs.
TERMS_ALONE, RARE_UP_TO, PAIRS = 8, 1_000, 6
MANY = 10_000
MAX_NAME_WORDS = 4
MAX_NAME_CHARS = 8
MAX_QUESTION_CHARS = 400
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # a model's arguments may hold it, no name does


@dataclass(frozen=True, slots=True)
class MemoryScope:
    """Whose memories, and which of them. thread: the user's memory thread, or a shadow's.

    as_of: those that held at that time, also superseded and archived ones. history: whatever their state. Neither:
    those that hold at `now`. Pending and forgotten ones are never found.
    """

    tenant: str
    thread: str
    now: datetime
    as_of: datetime | None = None
    history: bool = False

    @property
    def place(self) -> str:
        return "m.tenant = %(tenant)s AND m.thread_id = %(thread)s"

    @property
    def where(self) -> str:
        if self.history:
            return f"{self.place} AND m.status IN ('valid', 'archived', 'closed')"
        states = "('valid')" if self.as_of is None else "('valid', 'archived', 'closed')"
        return f"{self.place} AND m.status IN {states} AND m.closed_reason IS DISTINCT FROM 'rejected' AND {HOLDS}"

    @property
    def rows(self) -> str:
        return f"memories m WHERE {self.where}"

    @property
    def params(self) -> dict[str, Any]:
        return {"tenant": self.tenant, "thread": self.thread, "at": self.as_of or self.now}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the index takes it. terms: each once. vector: of `model`; spans: [from, to) of its dates."""

    terms: Sequence[str]
    vector: NDArray[np.float32] | None = None
    model: str | None = None
    spans: Sequence[tuple[datetime, datetime]] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """memories: of the thread, estimated above COUNT_UP_TO. dimensions: of the model's vectors, None: there are none.
    names: of the user's entities that the question speaks of."""

    memories: int
    dimensions: int | None
    names: tuple[str, ...]


class Caps(NamedTuple):
    """How many memories come at most by a term, by a pair of terms, by vector, and by each other way."""

    term: int
    pair: int
    near: int
    way: int

    @classmethod
    def of(cls, size: Size) -> "Caps":
        return cls(200, 30, 40, 60) if size.memories < MANY else cls(100, 20, 30, 40)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory and what there is to say for it.

    matched: weight of the question's terms in it, of at most `sought` (both rarities, summed). length: its terms.
    cosine, usual, spread: its own, and mean and deviation of the sample's; None without a vector. named: how many of
    the question's entities it is about. dated: it was said, or began to hold, in a time that the question names.
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


async def thread_size(conn: Connection, scope: MemoryScope, text: str, model: str | None) -> Size:
    """What decides how to search, in one small query."""
    rows = await conn.execute(
        f"""
        SELECT (SELECT count(*) FROM (SELECT FROM memories m WHERE {scope.place} LIMIT {COUNT_UP_TO + 1}) x),
          (SELECT count(*) FROM memories m WHERE {scope.place} AND id < %(below)s),
          (SELECT vector_dims(embedding) FROM (
            SELECT embedding, embedding_model FROM memories m WHERE {scope.place} ORDER BY id LIMIT {SAMPLE}) x
            WHERE embedding_model = %(model)s LIMIT 1),
          ARRAY(SELECT DISTINCT name FROM entities m WHERE {scope.place} AND name_key = ANY(%(keys)s))""".encode(),
        {**scope.params, "model": model, "below": PROBE_BELOW, "keys": name_keys(text)},
    )
    found = await rows.fetchone()
    assert found is not None
    counted, probed, dimensions, names = found
    return Size(counted if counted <= COUNT_UP_TO else max(counted, probed * PROBE_SHARE), dimensions, tuple(names))


async def candidates(conn: Connection, scope: MemoryScope, asked: Asked, size: Size) -> list[Candidate]:
    """Everything of a small thread; else the best by each way. In no order."""
    params = {
        **scope.params,
        "terms": list(asked.terms),
        "names": _spellings(size.names),
        "size": size.memories,
        "model": asked.model,
        "vector": None if asked.vector is None else HalfVector(asked.vector).to_text(),
        "first": [first for first, _ in asked.spans],
        "end": [end for _, end in asked.spans],
    }
    caps = Caps.of(size)
    async with conn.pipeline(), conn.transaction():
        await conn.execute(_HERE, [str(caps.near)])
        cursor = conn.cursor(row_factory=class_row(Candidate), binary=True)
        await cursor.execute(_query(scope, asked, size, caps).encode(), params)
    return await cursor.fetchall()


# A plan for any parameters would not know that a term is in few rows; the indexes would not be used.
_HERE = (
    "SELECT set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', %s, true), "
    "set_config('plan_cache_mode', 'force_custom_plan', true)"
)


def _query(scope: MemoryScope, asked: Asked, size: Size, caps: Caps) -> str:
    """few: the sample. asked: the terms, the rarest of the sample first; taken: those looked up alone. weights: by how
    many memories say a term, known for one that was taken and has fewer than the cap, else estimated. at: where a row
    is, which one statement comes back to faster than by its key."""
    near = _cosine(asked)
    whole = size.memories <= WHOLE_UP_TO
    cap = WHOLE_UP_TO if whole else caps.term
    taken = f"expected = 0 OR place = 1 OR place <= {TERMS_ALONE} AND expected <= {RARE_UP_TO}"
    ways = [f"SELECT m.ctid AS at FROM {scope.rows}"] if whole else _ways(scope, asked, size, caps)
    # A vector of zeros is near to nothing; its cosine is no number.
    cosine = f"CASE WHEN {_EMBEDDED} THEN nullif({near}, 'NaN') END" if near else "NULL::float"
    named = "cardinality(ARRAY(SELECT unnest(m.entities) INTERSECT SELECT unnest(%(names)s::text[])))"
    return f"""
    WITH few AS MATERIALIZED (SELECT terms, embedding, embedding_model FROM memories m WHERE {scope.place}
        ORDER BY id LIMIT {SAMPLE}),
      seen AS MATERIALIZED (SELECT term, %(size)s::float / greatest((SELECT count(*) FROM few), 1)
          * (SELECT count(*) FROM few WHERE term = ANY(terms)) AS expected FROM unnest(%(terms)s::text[]) q (term)),
      asked AS MATERIALIZED (SELECT term, expected, {"true" if whole else taken} AS taken FROM (SELECT *, row_number()
        OVER (PARTITION BY expected > 0 ORDER BY expected, length(term) DESC, term) AS place FROM seen) s),
      said AS MATERIALIZED (SELECT q.term, h.* FROM asked q, LATERAL (
        SELECT id, terms, m.ctid AS at FROM {scope.rows} AND terms @> ARRAY[q.term] LIMIT {cap}) h WHERE q.taken),
      weights AS MATERIALIZED (SELECT term, expected, NOT taken OR found = {cap} AS often,
          ln(1 + %(size)s / CASE WHEN taken AND found < {cap} THEN found
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
    FROM found JOIN memories m ON m.ctid = found.at AND {scope.place}, sample"""


_EMBEDDED = "m.embedding_model = %(model)s"
_SPANS = "unnest(%(first)s::timestamptz[], %(end)s::timestamptz[]) s (first, last)"
# What was made of others holds since it was made, and was said before.
_DATED = f"""SELECT FROM {_SPANS} WHERE least(m.valid_from, m.confirmed_at) >= s.first
        AND least(m.valid_from, m.confirmed_at) < s.last
      OR m.confirmed_at >= s.first AND m.confirmed_at < s.last"""


def _ways(scope: MemoryScope, asked: Asked, size: Size, caps: Caps) -> list[str]:
    by_words = (
        "SELECT at FROM (SELECT DISTINCT ON (at) * FROM said) s ORDER BY "
        f"(SELECT sum(weight) FROM weights w WHERE w.term = ANY(s.terms)) DESC, id LIMIT {caps.way}"
    )
    by_two = (
        "SELECT h.at FROM (SELECT a.term AS one, b.term AS other FROM weights a JOIN weights b ON a.term < b.term "
        f"WHERE a.often AND b.often ORDER BY a.weight + b.weight DESC, a.term, b.term LIMIT {PAIRS}) q, LATERAL ("
        f"SELECT m.ctid AS at FROM {scope.rows} AND terms @> ARRAY[q.one, q.other] LIMIT {caps.pair}) h"
    )
    by_vector = f"SELECT m.ctid FROM {scope.rows} AND {_EMBEDDED} ORDER BY {_distance(asked)} LIMIT {caps.near}"
    by_name = f"SELECT m.ctid FROM {scope.rows} AND entities && %(names)s::text[] LIMIT {caps.way}"
    by_time = [
        f"SELECT h.at FROM {_SPANS}, LATERAL (SELECT m.ctid AS at FROM {scope.rows} "
        f"AND m.{begin} >= s.first AND m.{begin} < s.last ORDER BY m.{begin} DESC LIMIT {caps.way}) h"
        for begin in ("valid_from", "confirmed_at")
    ]
    ways = ((True, by_words), (True, by_two), (asked.vector is not None, by_vector), (bool(size.names), by_name))
    return [way for is_asked, way in (*ways, *((bool(asked.spans), way) for way in by_time)) if is_asked]


def _cosine(asked: Asked) -> str | None:
    return None if asked.vector is None else f"(1 - ({_distance(asked)}))"


def _distance(asked: Asked) -> str:
    size = 0 if asked.vector is None else len(asked.vector)
    return f"(m.embedding::halfvec({size:d})) <=> %(vector)s::halfvec({size:d})"


def _spellings(names: Iterable[str]) -> list[str]:
    """An entity's row has the first spelling, a memory has its own turn's: "berlin", "Berlin", "ＢＥＲＬＩＮ"."""
    forms = {form for name in names for form in (name, name_key(name))}
    return sorted(forms | {form.title() for form in forms} | {form.upper() for form in forms})


def name_keys(text: str) -> list[str]:
    """Normal forms of all that may be a name in a question: up to four words, or eight Chinese characters, in a row."""
    text = _UNSTORABLE.sub(" ", text[:MAX_QUESTION_CHARS])
    words = [word.strip("\"'()[]{}<>,.;:!?“”‘’…") for word in text.split()]
    runs = {" ".join(words[at : at + n]) for at in range(len(words)) for n in range(1, MAX_NAME_WORDS + 1)}
    runs |= {word[:-2] for word in runs if word.endswith(("'s", "’s"))}
    if not text.isascii():
        runs |= {text[at : at + n] for at in range(len(text)) for n in range(2, MAX_NAME_CHARS + 1)}
    return sorted({name_key(run) for run in runs if run.strip()})
