"""store_items: items of LangGraph's long-term store, one row each; store_vectors: their vectors from the embedding
cache.

An item has exactly the vectors that its last put names, made by the model that the put names; a rebuild calls no model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from pgvector.sqlalchemy import HALFVEC
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB

from turnlog.events.contracts import REMOVALS, Recorded, StoreItemDeleted, StoreItemPut
from turnlog.events.subjects import STORE
from turnlog.projectors.engine.changes import Change, Row, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz

store_items = thread_table(
    "store_items",
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False, comment="labels joined by dots, with a dot at the end"),
    sa.Column("value", JSONB, nullable=False),
    sa.Column("created_at", timestamptz(), nullable=False),
    sa.Column("updated_at", timestamptz(), nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    thread="the thread of the log that stands for the namespace",
)
sa.Index(
    "store_items_by_namespace",
    store_items.c.tenant,
    store_items.c.namespace,
    postgresql_ops={"namespace": "text_pattern_ops"},
)
store_vectors = thread_table(
    "store_vectors",
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("field", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("embedding", HALFVEC(), nullable=False),
)
TABLES = (store_items, store_vectors)
ItemKey = tuple[str, str, str]  # (tenant, thread, key)
_KEY_PARAMS = ("tenants", "threads", "keys")
COLUMNS = tuple(column.name for column in store_items.columns)
_REPLACED = tuple((name, f"excluded.{name}") for name in ("namespace", "value", "updated_at", "seq"))
_WITH_KEYS = (
    "unnest(%(tenants)s::text[], %(threads)s::text[], %(keys)s::text[]) AS p (tenant, thread, key) "
    "WHERE t.tenant = p.tenant AND t.thread_id = p.thread AND t.key = p.key"
)
_FORGET = f"DELETE FROM store_items t USING {_WITH_KEYS}"
_FORGET_VECTORS = f"DELETE FROM store_vectors t USING {_WITH_KEYS}"
_VECTORS = """
INSERT INTO store_vectors (tenant, thread_id, key, field, model, embedding)
SELECT p.tenant, p.thread, p.key, p.field, c.model, c.embedding
FROM unnest(%(tenants)s::text[], %(threads)s::text[], %(keys)s::text[], %(fields)s::text[], %(models)s::text[],
  %(hashes)s::bytea[]) AS p (tenant, thread, key, field, model, text_hash)
JOIN embedding_cache c ON c.model = p.model AND c.text_hash = p.text_hash"""


def store_thread(namespace: Iterable[str]) -> str:
    """Returns the log's thread that contains a namespace's items. Labels contain no dots, so no two namespaces share a
    thread."""
    return STORE + ".".join(namespace)


def namespace_text(namespace: Iterable[str]) -> str:
    """Returns every label followed by a dot, so that a namespace is within another exactly if its text begins with the
    other's text."""
    return "".join(f"{label}." for label in namespace)


@dataclass(slots=True)
class _Item:
    """The changes that a batch makes to one item. put: its last put, unless the item was deleted after it."""

    key: ItemKey
    deleted: bool = False
    created_at: datetime | None = None
    put: Recorded | None = None


def project(batch: Sequence[Recorded]) -> list[Change]:
    """Returns the changes of a batch, one result per item, because a batch may put, delete and put the same item
    again."""
    items = _fold(batch)
    vectors = [row for item in items if item.put for row in _vectors(item.key, item.put)]
    return [
        *_statement(_FORGET, _KEY_PARAMS, [item.key for item in items if item.deleted]),
        Upsert(store_items, COLUMNS, [_row(item, item.put) for item in items if item.put], _REPLACED),
        *_statement(_FORGET_VECTORS, _KEY_PARAMS, [item.key for item in items]),
        *_statement(_VECTORS, (*_KEY_PARAMS, "fields", "models", "hashes"), vectors),
    ]


def _statement(text: str, names: Sequence[str], rows: Sequence[Row]) -> list[Change]:
    """Returns one statement for all rows, with a parameter for each column; [] without rows."""
    columns = (list(values) for values in zip(*rows, strict=True))
    return [Statement(text, [dict(zip(names, columns, strict=True))])] if rows else []


def _fold(batch: Sequence[Recorded]) -> list[_Item]:
    items: dict[ItemKey, _Item] = {}
    for recorded in batch:
        event, data = recorded.event, recorded.event.data
        assert isinstance(data, StoreItemPut | StoreItemDeleted)
        key = (event.tenant, event.thread, data.key)
        item = items.setdefault(key, _Item(key))
        if isinstance(data, StoreItemDeleted):
            item.deleted, item.created_at, item.put = True, None, None
        else:
            item.created_at, item.put = item.created_at or event.time, recorded
    return list(items.values())


def _row(item: _Item, put: Recorded) -> Row:
    data = put.event.data
    assert isinstance(data, StoreItemPut)
    value = to_json(data.value).decode()
    return (*item.key, namespace_text(data.namespace), value, item.created_at, put.event.time, put.seq)


def _vectors(key: ItemKey, put: Recorded) -> list[Row]:
    """Returns (*key, field, model, hash) for each vector of a put; [] if the put names no model."""
    data = put.event.data
    assert isinstance(data, StoreItemPut)
    if data.model is None:
        return []
    return [(*key, field, data.model, bytes.fromhex(text_hash)) for field, text_hash in data.vectors.items()]


STORE_ITEMS = Projection(
    "store_items",
    1,
    TABLES,
    REMOVALS | {"store_item_put", "store_item_deleted"},
    project,
    said=(store_items,),
    copied=(store_vectors,),
)
