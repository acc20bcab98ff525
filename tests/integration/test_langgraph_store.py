"""TurnlogStore behaves as LangGraph's own store tests expect, on real servers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from helpers.langgraph_stores import Stores, keys
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
)

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.store.store import TurnlogStore


@pytest.fixture
def stores(nats_url: str, database_url: str) -> Stores:
    return Stores(Settings(nats_url=nats_url, database_url=database_url))


@pytest.fixture
async def store(stores: Stores) -> AsyncIterator[TurnlogStore]:
    """Yields a store without vectors."""
    async with stores.opened() as opened:
        yield opened


async def fill(store: TurnlogStore, *namespaces: tuple[str, ...]) -> None:
    await store.abatch([PutOp(namespace, "k", {"n": at}) for at, namespace in enumerate(namespaces)])


async def namespaces_found(store: TurnlogStore, *prefix: str) -> set[tuple[str, ...]]:
    return {item.namespace for item in await store.asearch(prefix, limit=100)}


async def test_an_item_is_put_got_updated_and_deleted(store: TurnlogStore) -> None:
    before = datetime.now(UTC)
    await store.aput(("docs", "public"), "a", {"title": "One", "pages": [1, 2], "more": {"ok": True, "none": None}})
    first = await store.aget(("docs", "public"), "a")
    assert first is not None and type(first) is Item
    assert (first.namespace, first.key) == (("docs", "public"), "a")
    assert first.value == {"title": "One", "pages": [1, 2], "more": {"ok": True, "none": None}}
    assert before <= first.created_at == first.updated_at <= datetime.now(UTC)
    await store.aput(("docs", "public"), "a", {"title": "Two"})
    second = await store.aget(("docs", "public"), "a")
    assert second is not None and second.value == {"title": "Two"}
    assert second.created_at == first.created_at < second.updated_at
    assert await store.aget(("docs",), "a") is None
    await store.adelete(("docs", "public"), "a")
    assert await store.aget(("docs", "public"), "a") is None
    await store.adelete(("docs", "public"), "a")


async def test_reads_of_a_call_see_the_state_before_it(store: TurnlogStore) -> None:
    await store.aput(("a",), "old", {"n": 1})
    ops: list[Op] = [
        PutOp(("a",), "old", {"n": 2}),
        PutOp(("a",), "new", {"n": 3}),
        GetOp(("a",), "old"),
        GetOp(("a",), "new"),
        SearchOp(("a",)),
        ListNamespacesOp(),
    ]
    put, put_again, old, new, searched, listed = await store.abatch(ops)
    assert (put, put_again, new, listed) == (None, None, None, [("a",)])
    assert isinstance(old, Item) and old.value == {"n": 1}
    assert isinstance(searched, list) and keys(searched) == ["old"]
    assert sorted(keys(await store.asearch(("a",)))) == ["new", "old"]


async def test_of_several_writes_to_one_key_in_a_call_the_last_wins(store: TurnlogStore) -> None:
    await store.abatch([PutOp(("a",), "k", {"n": n}) for n in range(5)] + [PutOp(("a",), "gone", {})])
    await store.abatch([PutOp(("a",), "gone", {"n": 1}), PutOp(("a",), "gone", None), PutOp(("a",), "never", None)])
    [item] = await store.asearch(("a",))
    assert (item.key, item.value) == ("k", {"n": 4})


async def test_an_empty_call_does_nothing(store: TurnlogStore) -> None:
    assert await store.abatch([]) == []


async def test_calls_that_come_together_all_get_their_answers(store: TurnlogStore) -> None:
    """Makes more than a thousand concurrent calls of each kind, on a pool of sixteen connections."""
    count = 1_200
    await asyncio.gather(*(store.aput(("n", str(n % 7)), f"k{n}", {"n": n}) for n in range(count)))
    items = await asyncio.gather(*(store.aget(("n", str(n % 7)), f"k{n}") for n in range(count)))
    assert [item.value["n"] for item in items if item] == list(range(count))
    await asyncio.gather(*(store.adelete(("n", str(n % 7)), f"k{n}") for n in range(0, count, 2)))
    assert len(await store.asearch(("n",), limit=count)) == count // 2


async def test_a_bad_call_fails_alone(store: TurnlogStore) -> None:
    good, bad, worse = await asyncio.gather(
        store.aput(("a",), "k", {"n": 1}),
        store.aput(("a",), "k", {"n": object()}),
        store.aget(("a.b",), "k"),
        return_exceptions=True,
    )
    assert good is None and isinstance(bad, ValueError) and isinstance(worse, InvalidNamespaceError)
    assert (item := await store.aget(("a",), "k")) is not None and item.value == {"n": 1}


async def test_bad_namespaces_are_refused_before_anything_happens(store: TurnlogStore) -> None:
    namespaces: list[Any] = [("a.b",), ("a", ""), ("a", 1), ("a", "\x00")]
    for op in (op for namespace in namespaces for op in every_op(namespace)):
        with pytest.raises(InvalidNamespaceError):
            await store.abatch([PutOp(("valid",), "k", {}), op])
    assert await store.asearch(()) == []


def every_op(namespace: Any) -> list[Op]:
    return [
        GetOp(namespace, "k"),
        PutOp(namespace, "k", {}),
        PutOp(namespace, "k", None),
        SearchOp(namespace),
        ListNamespacesOp((MatchCondition("prefix", namespace),)),
        ListNamespacesOp((MatchCondition("suffix", namespace),)),
    ]


async def test_nothing_can_be_put_at_the_root_or_in_langgraphs_own_namespace(store: TurnlogStore) -> None:
    for namespace in ((), ("langgraph", "x")):
        with pytest.raises(InvalidNamespaceError):
            await store.aput(namespace, "k", {})
    with pytest.raises(InvalidNamespaceError):
        await store.abatch([PutOp((), "k", {})])


async def test_a_time_to_live_is_refused(store: TurnlogStore) -> None:
    with pytest.raises(NotImplementedError, match="TTL is not supported"):
        await store.aput(("a",), "k", {}, ttl=5)
    with pytest.raises(NotImplementedError, match="TTL is not supported"):
        await store.abatch([PutOp(("a",), "k", {}, ttl=5)])


async def test_without_a_query_the_newest_come_first_by_pages(store: TurnlogStore) -> None:
    for n in range(5):
        await store.aput(("a", str(n)), f"k{n}", {})
    await store.aput(("a", "1"), "k1", {"again": True})
    items = await store.asearch(("a",))
    assert keys(items) == ["k1", "k4", "k3", "k2", "k0"]
    assert all(type(item) is SearchItem and item.score is None for item in items)
    pages = [keys(await store.asearch(("a",), limit=2, offset=offset)) for offset in (0, 2, 4, 6)]
    assert pages == [["k1", "k4"], ["k3", "k2"], ["k0"], []]
    assert await store.asearch(("a",), limit=0) == []


async def test_a_prefix_matches_whole_labels_and_no_patterns(store: TurnlogStore) -> None:
    names = [("foo",), ("foo", "child"), ("foo", "child", "deep"), ("foobar",), ("foo!",), ("foo2", "x"), ("b", "foo")]
    await fill(store, *names, ("user_1",), ("userX1",), ("a%b", "c"), ("axb",))
    assert await namespaces_found(store, "foo") == set(names[:3])
    assert await namespaces_found(store, "foo", "child") == set(names[1:3])
    assert await namespaces_found(store, "fo") == set()
    assert await namespaces_found(store, "user_1") == {("user_1",)}
    assert await namespaces_found(store, "a%b") == {("a%b", "c")}
    assert len(await namespaces_found(store)) == 11


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "abcd"),
    ({"color": "red"}, "ab"),
    ({"color": {"$eq": "red"}, "n": 10}, "b"),
    ({"n": 9.0}, "a"),
    ({"n": {"$gt": 9}}, "b"),
    ({"n": {"$gte": 9}}, "ab"),
    ({"n": {"$lt": 10}}, "a"),
    ({"n": {"$lte": 10, "$gt": 9.5}}, "b"),
    ({"n": {"$gt": "1"}}, "c"),
    ({"color": {"$gt": "green"}}, "ab"),
    ({"color": {"$ne": "red"}}, "cd"),
    ({"gone": None}, "abcd"),
    ({"gone": {"$ne": None}}, ""),
    ({"tags": ["x", "y"]}, "a"),
    ({"tags": ["x"]}, ""),
    ({"meta": {"by": "Ann"}}, "a"),
    ({"meta": {"by": {"$ne": "Ann"}}}, "b"),
    ({"meta": {"at": {"$gte": "2024-01-01"}, "by": "Ann"}}, "a"),
    ({"meta": {"$eq": {"by": "Bob"}}}, "b"),
    ({"meta": {}}, "ab"),
    ({"on": True}, "c"),
    ({"o'x": 'say "hi" \\ %s'}, "d"),
]


async def test_filters_compare_fields_of_the_value(store: TurnlogStore) -> None:
    values: dict[str, dict[str, Any]] = {
        "a": {"color": "red", "n": 9, "tags": ["x", "y"], "meta": {"by": "Ann", "at": "2024-05-08"}},
        "b": {"color": "red", "n": 10, "meta": {"by": "Bob"}},
        "c": {"color": "green", "n": "9", "on": True},
        "d": {"o'x": 'say "hi" \\ %s', "tags": "x"},
    }
    await store.abatch([PutOp(("f",), key, value) for key, value in values.items()])
    for wanted, expected in FILTERS:
        assert "".join(sorted(keys(await store.asearch(("f",), filter=wanted)))) == expected, wanted


async def test_an_invalid_filter_is_refused(store: TurnlogStore) -> None:
    for wanted in ({"$in": [1]}, object(), {"$gt": float("nan")}, "\x00", "\ud800"):
        with pytest.raises(ValueError, match=r"Unsupported operator|cannot be compared"):
            await store.asearch((), filter={"n": wanted})


async def test_an_invalid_page_is_refused(store: TurnlogStore) -> None:
    pages: list[dict[str, Any]] = [{"limit": -1}, {"offset": -1}, {"limit": 2.5}]
    for page in pages:
        with pytest.raises(ValueError, match="must be a number of at least 0"):
            await store.asearch((), **page)


LISTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["a.b", "a.b.c", "a.d.c", "a.d.e.c", "ab", "b.c", "é.中"]),
    ({"prefix": ("a",)}, ["a.b", "a.b.c", "a.d.c", "a.d.e.c"]),
    ({"prefix": ("a", "*", "c")}, ["a.b.c", "a.d.c"]),
    ({"suffix": ("c",)}, ["a.b.c", "a.d.c", "a.d.e.c", "b.c"]),
    ({"suffix": ("d", "*")}, ["a.d.c"]),
    ({"prefix": ("a",), "suffix": ("*", "c")}, ["a.b.c", "a.d.c", "a.d.e.c"]),
    ({"prefix": ("a", "b", "c", "d")}, []),
    ({"max_depth": 2}, ["a.b", "a.d", "ab", "b.c", "é.中"]),
    ({"max_depth": 1, "prefix": ("a",)}, ["a"]),
    ({"max_depth": 2, "limit": 2, "offset": 1}, ["a.d", "ab"]),
    ({"prefix": ("é",)}, ["é.中"]),
]


async def test_namespaces_are_listed_by_their_labels(store: TurnlogStore) -> None:
    names = ["b.c", "a.b", "a.d.c", "a.b.c", "ab", "a.d.e.c", "é.中"]
    await fill(store, *(tuple(name.split(".")) for name in names))
    for wanted, expected in LISTINGS:
        assert [".".join(labels) for labels in await store.alist_namespaces(**wanted)] == expected, wanted


async def test_several_conditions_of_one_kind_must_all_hold_and_an_empty_one_holds_always(store: TurnlogStore) -> None:
    await fill(store, ("a", "b", "c"), ("a", "x", "c"), ("a", "b"))
    conditions = (MatchCondition("prefix", ("a", "b")), MatchCondition("prefix", ("*", "*", "c")))
    [listed] = await store.abatch([ListNamespacesOp(conditions)])
    assert listed == [("a", "b", "c")]
    [listed] = await store.abatch([ListNamespacesOp((MatchCondition("suffix", ()),), limit=2)])
    assert listed == [("a", "b"), ("a", "b", "c")]


async def test_a_namespace_without_items_is_not_listed(store: TurnlogStore) -> None:
    await fill(store, ("a",), ("b",))
    await store.adelete(("a",), "k")
    assert await store.alist_namespaces() == [("b",)]


async def test_labels_and_keys_may_be_any_text(store: TurnlogStore) -> None:
    odd = [("用户 123", "mémoire"), ("users", "alice\n"), ("users", "alice"), ("a/b*>", "$")]
    for at, namespace in enumerate(odd):
        await store.aput(namespace, "ключ.%_\\ '1'", {"n": at, "文": "这是中文 🎓"})
    for at, namespace in enumerate(odd):
        item = await store.aget(namespace, "ключ.%_\\ '1'")
        assert item is not None and item.value == {"n": at, "文": "这是中文 🎓"} and item.namespace == namespace
    assert await store.alist_namespaces(suffix=("alice",)) == [("users", "alice")]
    assert await store.alist_namespaces(prefix=("a/b*>",)) == [("a/b*>", "$")]
