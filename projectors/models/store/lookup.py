"""Reads the store: items by key, searches within a namespace, and lists of namespaces."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.store.filter import EVERYTHING, Clause
from turnlog.projectors.models.store.projection import namespace_text, store_thread

Namespace = tuple[str, ...]
_ITEM = "i.namespace, i.key, i.value, i.created_at, i.updated_at, i.seq"
_OF_ITEM = "v.tenant = i.tenant AND v.thread_id = i.thread_id AND v.key = i.key AND v.model = %s"
_LACKS = f"NOT EXISTS (SELECT FROM store_vectors v WHERE {_OF_ITEM})"


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item. seq: the sequence of its last put. score: the cosine similarity of its best field, if the search has a
    vector."""

    namespace: Namespace
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    seq: int
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Near:
    """The target of a search by vector. vector: a vector of `model` in pgvector's text form."""

    model: str
    dimensions: int
    vector: str


@dataclass(frozen=True, slots=True)
class ItemSearch:
    """A search for items in a namespace or below it. fits: an SQL condition on items. near: orders by similarity to
    this vector; without it the newest items are first."""

    prefix: Namespace
    fits: Clause = EVERYTHING
    limit: int = 10
    offset: int = 0
    near: Near | None = None


@dataclass(frozen=True, slots=True)
class NamespaceListing:
    """A listing of the namespaces that match every prefix and suffix ("*" matches any label), cut to max_depth
    labels."""

    prefixes: tuple[Namespace, ...] = ()
    suffixes: tuple[Namespace, ...] = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


async def items_by_key(
    conn: Connection, tenant: str, places: Sequence[tuple[Namespace, str]]
) -> dict[tuple[Namespace, str], StoredItem]:
    """Returns the items with these (namespace, key) pairs; pairs without an item are left out."""
    rows = await conn.execute(
        f"SELECT {_ITEM}, NULL FROM unnest(%s::text[], %s::text[]) AS p (thread, key) "
        "JOIN store_items i ON i.tenant = %s AND i.thread_id = p.thread AND i.key = p.key".encode(),
        ([store_thread(namespace) for namespace, _ in places], [key for _, key in places], tenant),
    )
    items = [_item(row) for row in await rows.fetchall()]
    return {(item.namespace, item.key): item for item in items}


async def search_items(conn: Connection, tenant: str, search: ItemSearch) -> list[StoredItem]:
    """Returns the items that match a search. The search is exact: it selects the items of the namespace and compares
    all of their vectors.

    Items without a vector of the model come last and have no score.
    """
    within, bounds = _within(search.prefix)
    fits, wanted = search.fits
    score, near = _score(search.near) if search.near else ("NULL::float8", [])
    rows = await conn.execute(
        f"SELECT {_ITEM}, {score} AS score FROM store_items i WHERE i.tenant = %s AND {within} AND {fits} "
        f"ORDER BY score DESC NULLS LAST, i.updated_at DESC, i.seq DESC LIMIT %s OFFSET %s".encode(),
        [*near, tenant, *bounds, *wanted, search.limit, search.offset],
    )
    return [_item(row) for row in await rows.fetchall()]


async def list_namespaces(conn: Connection, tenant: str, listing: NamespaceListing) -> list[Namespace]:
    """Returns the namespaces of a listing, ordered by the code points of their labels."""
    clauses, params = [], list[Any]()
    for path in listing.prefixes:
        clauses += [f"labels[{at}] = %s" for at, label in enumerate(path, 1) if label != "*"]
        clauses.append(f"cardinality(labels) >= {len(path)}")
        params += [label for label in path if label != "*"]
    for path in listing.suffixes:
        clauses += [f"labels[cardinality(labels) - {at}] = %s" for at, label in _from_end(path) if label != "*"]
        clauses.append(f"cardinality(labels) >= {len(path)}")
        params += [label for _, label in _from_end(path) if label != "*"]
    rows = await conn.execute(
        'SELECT DISTINCT labels[1:coalesce(%s, cardinality(labels))] COLLATE "C" AS shown FROM '
        "(SELECT string_to_array(left(namespace, -1), '.') AS labels FROM "
        "(SELECT DISTINCT namespace FROM store_items WHERE tenant = %s) d) n "
        f"WHERE {' AND '.join(['true', *clauses])} ORDER BY shown LIMIT %s OFFSET %s".encode(),
        [listing.max_depth, tenant, *params, listing.limit, listing.offset],
    )
    return [tuple(labels) for (labels,) in await rows.fetchall()]


async def namespaces_lacking(conn: Connection, tenant: str, prefix: Namespace, model: str) -> list[Namespace]:
    """Returns the namespaces at or below the prefix that contain items without a vector of the model."""
    within, bounds = _within(prefix)
    rows = await conn.execute(
        f"SELECT DISTINCT i.namespace FROM store_items i WHERE i.tenant = %s AND {within} AND {_LACKS}".encode(),
        [tenant, *bounds, model],
    )
    return [_labels(text) for (text,) in await rows.fetchall()]


async def items_lacking(conn: Connection, tenant: str, namespace: Namespace, model: str) -> list[StoredItem]:
    """Returns the items of one namespace that have no vector of the model, oldest first."""
    rows = await conn.execute(
        f"SELECT {_ITEM}, NULL FROM store_items i WHERE i.tenant = %s AND i.thread_id = %s AND {_LACKS} "
        "ORDER BY i.seq".encode(),
        (tenant, store_thread(namespace), model),
    )
    return [_item(row) for row in await rows.fetchall()]


def _from_end(path: Namespace) -> list[tuple[int, str]]:
    """Returns (number of labels after it, label) for each label of the path."""
    return [(len(path) - 1 - at, label) for at, label in enumerate(path)]


def _within(prefix: Namespace) -> tuple[str, list[str]]:
    """Returns SQL and parameters of a range that contains the namespaces at or below the prefix: text that begins with
    "a.b." lies between "a.b." and "a.b/", because "/" is the byte after ".".

    Unlike LIKE, a range can use the index in a prepared statement too, and no label needs escaping.
    """
    if not prefix:
        return "true", []
    text = namespace_text(prefix)
    return "i.namespace ~>=~ %s AND i.namespace ~<~ %s", [text, text[:-1] + "/"]


def _score(near: Near) -> tuple[str, list[Any]]:
    """Returns SQL for the score of an item's best field. The score of a zero vector is 0, because Postgres returns NaN
    for its distance and sorts NaN as the greatest."""
    similarity = "coalesce(nullif(1 - (v.embedding <=> %s::halfvec), 'NaN'), 0)"
    return (
        f"(SELECT max(CASE WHEN vector_dims(v.embedding) = %s THEN {similarity} END) FROM store_vectors v "
        f"WHERE {_OF_ITEM})",
        [near.dimensions, near.vector, near.model],
    )


def _item(row: Sequence[Any]) -> StoredItem:
    namespace, *rest = row
    return StoredItem(_labels(namespace), *rest)


def _labels(namespace: str) -> Namespace:
    return tuple(namespace[:-1].split("."))


MEMORIES = "memories"


def memories_of(user_id: str) -> tuple[str, str]:
    """Returns the store's namespace for a user's long-term memories. Dots of the id are escaped, because labels contain
    none."""
    return MEMORIES, user_id.replace("%", "%25").replace(".", "%2E")
