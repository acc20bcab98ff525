"""The read model `store_items` has the items of LangGraph's store, with vectors from the embedding cache."""

import hashlib
from typing import Any

from conftest import Settled
from helpers.projection_spec import Spec, seq
from helpers.sample_events import MAY_8, event
from helpers.servers import rows

from turnlog.events.contracts import Event, StoreItemDeleted, StoreItemPut, ThreadDeleted
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.store.projection import STORE_ITEMS, namespace_text, store_thread
from turnlog.projectors.rebuild.rebuild import rebuild
from turnlog.projectors.rebuild.verify import verify

ITEMS = "SELECT namespace, key, value, seq FROM store_items ORDER BY seq"
TIMES = "SELECT key, created_at, updated_at FROM store_items ORDER BY key"
VECTORS = "SELECT key, field, model, embedding::text FROM store_vectors ORDER BY key, field"
CACHED = (
    "DELETE FROM embedding_cache; INSERT INTO embedding_cache (model, text_hash, embedding) SELECT m, "
    "sha256(convert_to(t, 'UTF8')), e::halfvec FROM (VALUES ('small', 'tea', '[1,0,0]'), "
    "('small', 'milk', '[0,1,0]'), ('large', 'tea', '[0,0,0,1]')) AS v (m, t, e)"
)


def put(
    key: str,
    value: dict[str, Any],
    minutes: int = 0,
    namespace: tuple[str, ...] = ("users", "ann"),
    model: str | None = "small",
    **texts: str,
) -> Event:
    """Returns an event that puts an item. texts: the text to embed for each field."""
    hashes = {field: hashlib.sha256(text.encode()).hexdigest() for field, text in texts.items()}
    data = StoreItemPut(namespace=namespace, key=key, value=value, model=model if texts else None, vectors=hashes)
    return event(data, store_thread(namespace), minutes)


def deleted(key: str, minutes: int = 0, namespace: tuple[str, ...] = ("users", "ann")) -> Event:
    return event(StoreItemDeleted(namespace=namespace, key=key), store_thread(namespace), minutes)


def test_a_namespace_has_a_unique_thread_and_text() -> None:
    assert store_thread(("users", "ann")) == "store/users.ann"
    assert namespace_text(("users", "ann")) == "users.ann."
    assert not namespace_text(("users", "anna")).startswith(namespace_text(("users", "ann")))


async def test_an_item_is_a_row_that_the_last_put_replaces(db: Connection) -> None:
    spec = Spec(db, STORE_ITEMS).given(put("likes", {"text": "tea"}), put("owns", {"n": [1, 2.5, None, "é"]}, 1))
    await spec.then(
        ITEMS,
        [("users.ann.", "likes", {"text": "tea"}, seq(1)), ("users.ann.", "owns", {"n": [1, 2.5, None, "é"]}, seq(2))],
    )
    await spec.when(put("likes", {"drink": "milk"}, 5)).then(
        ITEMS,
        [
            ("users.ann.", "owns", {"n": [1, 2.5, None, "é"]}, seq(2)),
            ("users.ann.", "likes", {"drink": "milk"}, seq(3)),
        ],
    )


async def test_an_item_keeps_its_creation_time_and_is_updated_by_each_put(db: Connection) -> None:
    def at(minutes: int) -> Any:
        return put("x", {}, minutes).time

    spec = Spec(db, STORE_ITEMS).given(put("likes", {"n": 1}, 1), put("likes", {"n": 2}, 2))
    await spec.then(TIMES, [("likes", at(1), at(2))])
    again = spec.when(deleted("likes", 3), put("likes", {"n": 3}, 4), put("likes", {"n": 4}, 5))
    await again.then(TIMES, [("likes", at(4), at(5))])
    assert at(0) == MAY_8


async def test_a_deleted_item_is_gone_with_its_vectors_and_others_stay(db: Connection) -> None:
    spec = Spec(db, STORE_ITEMS, setup=CACHED).given(
        put("a", {}, text="tea"), put("b", {}, text="milk"), put("a", {}, namespace=("users",), text="tea")
    )
    left = spec.when(deleted("a"), deleted("never there"))
    await left.then(ITEMS, [("users.ann.", "b", {}, seq(2)), ("users.", "a", {}, seq(3))])
    await left.then(VECTORS, [("a", "text", "small", "[1,0,0]"), ("b", "text", "small", "[0,1,0]")])


async def test_vectors_are_those_that_the_last_put_names(db: Connection) -> None:
    spec = Spec(db, STORE_ITEMS, setup=CACHED).given(put("a", {}, text="tea", title="milk"))
    await spec.then(VECTORS, [("a", "text", "small", "[1,0,0]"), ("a", "title", "small", "[0,1,0]")])
    await spec.when(put("a", {}, text="milk")).then(VECTORS, [("a", "text", "small", "[0,1,0]")])
    await spec.when(put("a", {}, model="large", text="tea")).then(VECTORS, [("a", "text", "large", "[0,0,0,1]")])
    await spec.when(put("a", {})).then(VECTORS, [])


async def test_a_text_without_a_vector_in_the_cache_or_without_a_model_has_none(db: Connection) -> None:
    spec = Spec(db, STORE_ITEMS, setup=CACHED).given(put("a", {}, text="unknown", title="tea"))
    await spec.then(VECTORS, [("a", "title", "small", "[1,0,0]")])
    await Spec(db, STORE_ITEMS, setup=CACHED).given(put("a", {}, model=None, text="tea")).then(VECTORS, [])


async def test_a_deleted_thread_is_an_empty_namespace(db: Connection) -> None:
    spec = Spec(db, STORE_ITEMS, setup=CACHED).given(
        put("a", {}, text="tea"), put("a", {}, namespace=("users",), text="milk")
    )
    left = spec.when(event(ThreadDeleted(), store_thread(("users", "ann"))))
    await left.then(ITEMS, [("users.", "a", {}, seq(2))])
    await left.then(VECTORS, [("a", "text", "small", "[0,1,0]")])


async def test_a_rebuild_gives_the_same_rows(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await db.execute(CACHED.encode())
    await log.append_many(
        [
            put("a", {"t": "tea"}, 1, text="tea"),
            put("b", {"t": "milk"}, 2, text="milk"),
            deleted("a", 3),
            put("a", {"t": "more tea"}, 4, text="tea", title="milk"),
            put("c", {}, 5, ("other",)),
        ]
    )
    await settled("store_items")
    before = [await rows(db, f"SELECT t::text FROM {table.name} t ORDER BY 1") for table in STORE_ITEMS.tables]
    assert [len(table_rows) for table_rows in before] == [3, 3]
    assert (await verify(log, database_url, STORE_ITEMS)).differences == ()
    await rebuild(log, database_url, STORE_ITEMS)
    after = [await rows(db, f"SELECT t::text FROM {table.name} t ORDER BY 1") for table in STORE_ITEMS.tables]
    assert after == before
