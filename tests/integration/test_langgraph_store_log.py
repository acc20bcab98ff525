"""Tests TurnlogStore on the log: processes, tenants, restarts, limits, synchronous calls and graphs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import pytest
from helpers.langgraph_stores import Stores, WordVectors, index_by, keys
from helpers.sample_events import event
from helpers.servers import eventually, running_projector
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, PutOp

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.store.ops import InvalidItem
from turnlog.consumers.langgraph.store.store import TurnlogStore
from turnlog.consumers.runtime import opened
from turnlog.consumers.sync_bridge import LoopClosed, WrongThread
from turnlog.events.contracts import ThreadDeleted
from turnlog.events.errors import EventTooLarge, InvalidToken
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.store.projection import store_thread


@pytest.fixture
def settings(nats_url: str, database_url: str) -> Settings:
    return Settings(nats_url=nats_url, database_url=database_url)


@pytest.fixture
def stores(settings: Settings) -> Stores:
    return Stores(settings)


@pytest.fixture
async def store(stores: Stores) -> AsyncIterator[TurnlogStore]:
    async with stores.opened() as opened_store:
        yield opened_store


async def test_every_write_is_an_event_of_its_namespace_and_a_call_is_one_batch(store: TurnlogStore) -> None:
    await store.abatch([PutOp(("a", "b"), "k", {"n": 1}), PutOp(("a",), "k", {}), PutOp(("a", "b"), "l", None)])
    events = [recorded async for recorded in store.log.read_thread("default", "store/a.b")]
    assert [(recorded.event.type, recorded.event.source) for recorded in events] == [
        ("store_item_put", "turnlog/langgraph"),
        ("store_item_deleted", "turnlog/langgraph"),
    ]
    assert [recorded.seq for recorded in events] == [1, 3]


async def test_two_stores_on_one_log_see_each_others_writes(stores: Stores) -> None:
    async with stores.opened() as first, stores.opened() as second:
        await first.aput(("a",), "k", {"n": 1})
        assert (item := await second.aget(("a",), "k")) is not None and item.value == {"n": 1}
        await second.adelete(("a",), "k")
        assert await first.aget(("a",), "k") is None


async def test_a_tenant_sees_only_its_own(stores: Stores) -> None:
    index = index_by(WordVectors(), "text")
    async with stores.opened("ann", index) as ann, stores.opened("bob", index) as bob:
        await ann.aput(("a",), "k", {"text": "cat"})
        await bob.aput(("b",), "k", {"text": "cat"})
        await bob.adelete(("a",), "k")
        for store, own, namespace in ((ann, "cat", ("a",)), (bob, "cat", ("b",))):
            assert [item.namespace for item in await store.asearch((), query=own)] == [namespace]
            assert await store.alist_namespaces() == [namespace]
        assert await bob.aget(("a",), "k") is None
    with pytest.raises(InvalidToken, match="tenant"):
        async with stores.opened("a.b"):
            pass


async def test_items_appended_without_a_projector_appear_when_one_runs(
    settings: Settings, log: Log, database_url: str
) -> None:
    async with opened(settings) as runtime:
        store = TurnlogStore(runtime.log, runtime.pool, index=False)
        async with running_projector(log, database_url):
            await store.aput(("a",), "before", {"n": 1})
        writing = asyncio.gather(*(store.aput(("a",), f"k{n}", {"n": n}) for n in range(20)))

        async def is_appended() -> bool:
            return await log.head() == 21

        await eventually(is_appended)
        assert keys(await store.asearch(("a",))) == ["before"]
        async with running_projector(log, database_url):
            await writing
        assert len(await store.asearch(("a",), limit=100)) == 21
        await store.aclose()


async def test_a_store_on_many_partitions_waits_for_the_right_ones(nats_url: str, database_url: str) -> None:
    settings = Settings(nats_url=nats_url, database_url=database_url, partitions=5)
    async with Stores(settings).opened() as store:
        for n in range(20):
            await store.aput(("a", str(n)), "k", {"n": n})
            assert await store.aget(("a", str(n)), "k") is not None
        await store.abatch([PutOp(("a", str(n)), "k", None) for n in range(20)])
        assert await store.asearch(("a",)) == []


async def test_a_deleted_thread_is_an_empty_namespace(store: TurnlogStore) -> None:
    await store.aput(("a",), "k", {})
    done = await store.log.append(event(ThreadDeleted(), store_thread(("a",))))
    async with store.pool.connection() as conn:
        await wait_for(conn, ("store_items",), 0, done.seq, timeout_s=180.0)
    assert await store.asearch(()) == []


BAD_VALUES: list[tuple[Any, str]] = [
    ({"n": object()}, "not JSON serializable"),
    ({"n": {1, 2}}, "not JSON serializable"),
    ({"n": float("nan")}, "Out of range float"),
    ({"n": b"x"}, "not JSON serializable"),
    ({"n": "a\x00b"}, "NUL character"),
    ({"\x00": 1}, "NUL character"),
    ({"n": "\ud800"}, "lone surrogate"),
    ([1], "a mapping is needed"),
    ("text", "a mapping is needed"),
]


async def test_a_value_that_is_not_json_is_refused_and_nothing_of_the_call_is_stored(store: TurnlogStore) -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"d": deep}
    endless: dict[str, Any] = {}
    endless["self"] = endless
    for value, reason in [*BAD_VALUES, (deep, "cannot be stored"), (endless, "ircular|contains itself")]:
        with pytest.raises(InvalidItem, match=reason):
            await store.abatch([PutOp(("a",), "good", {}), PutOp(("a",), "bad", value)])
    assert (await store.log.head(), await store.asearch(())) == (0, [])


async def test_odd_but_good_json_comes_back_as_it_was(store: TurnlogStore) -> None:
    value = {"": 1, "big": 2**80, "small": 1e-300, "no nul": "\\u0000", "b": [True, None, [], {}], "é": "\u2028"}
    await store.aput(("a",), "k", value)
    item = await store.aget(("a",), "k")
    assert item is not None and item.value == value


async def test_too_large_a_value_and_too_long_a_name_are_refused(store: TurnlogStore) -> None:
    with pytest.raises(EventTooLarge, match="the server takes"):
        await store.aput(("a",), "k", {"text": "x" * store.log.nc.max_payload})
    for namespace, key in ((("a",), "k" * 513), (("a" * 600,), "k"), (("a",), "")):
        with pytest.raises(InvalidToken, match=r"item id|namespace's thread id"):
            await store.aput(namespace, key, {})
    longest = ("é" * 100, "中" * 101)
    await store.aput(longest, "k" * 512, {"n": 1})
    assert await store.aget(longest, "k" * 512) is not None


async def test_synchronous_methods_are_for_other_threads(store: TurnlogStore) -> None:
    def use() -> list[Any]:
        store.put(("a",), "k", {"n": 1})
        item = store.get(("a",), "k")
        results = [item and item.value, keys(store.search(("a",))), store.list_namespaces()]
        store.delete(("a",), "k")
        return [*results, store.get(("a",), "k")]

    assert await asyncio.to_thread(use) == [{"n": 1}, ["k"], [("a",)], None]
    for call in (
        lambda: store.put(("a",), "k", {}),
        lambda: store.get(("a",), "k"),
        lambda: store.delete(("a",), "k"),
        lambda: store.search(("a",)),
        lambda: store.list_namespaces(),
        lambda: store.batch([]),
    ):
        with pytest.raises(WrongThread, match="await") as caught:
            call()
        assert isinstance(caught.value, asyncio.InvalidStateError)


async def test_calls_in_another_event_loop_are_answered(settings: Settings) -> None:
    async def elsewhere(store: TurnlogStore) -> Any:
        await asyncio.gather(*(store.aput(("a",), f"k{n}", {"n": n}) for n in range(5)))
        items = await asyncio.gather(*(store.aget(("a",), f"k{n}") for n in range(5)))
        return [item.value["n"] for item in items if item]

    def program() -> Any:
        with TurnlogStore.open_sync(settings, index=False) as store:
            return asyncio.run(asyncio.wait_for(elsewhere(store), 60))

    assert await asyncio.to_thread(program) == [0, 1, 2, 3, 4]


async def test_programs_without_a_loop_open_it_synchronously(settings: Settings) -> None:
    def program() -> tuple[Any, TurnlogStore]:
        with TurnlogStore.open_sync(settings, index=index_by(WordVectors(), "text")) as store:
            store.put(("a",), "k", {"text": "cat"})
            [item] = store.search(("a",), query="cat")
        return item.score, store

    score, closed = await asyncio.to_thread(program)
    assert score == pytest.approx(1, abs=1e-3)
    with pytest.raises(LoopClosed, match="open it again"):
        await asyncio.to_thread(closed.get, ("a",), "k")

    def misnamed() -> None:
        with TurnlogStore.open_sync(settings, tenant="a.b"):
            pass

    with pytest.raises(InvalidToken):
        await asyncio.to_thread(misnamed)


class State(TypedDict):
    user: str
    said: str
    recalled: list[str]


async def remember(state: State, *, store: BaseStore) -> dict[str, Any]:
    items = await store.asearch(("memories", state["user"]), query=state["said"], limit=2)
    await store.aput(("memories", state["user"]), state["said"], {"text": state["said"]})
    return {"recalled": [item.value["text"] for item in items]}


def remember_sync(state: State, *, store: BaseStore) -> dict[str, Any]:
    item = store.get(("memories", state["user"]), "I like green tea")
    return {"recalled": [item.value["text"]] if item else []}


async def test_a_graph_remembers_across_runs_by_the_store_in_its_node(stores: Stores) -> None:
    async with stores.by_words("text") as store:
        graph = StateGraph(State).add_node(remember).add_edge(START, "remember").compile(store=store)
        for said in ("I like green tea", "my car is red"):
            await graph.ainvoke({"user": "ann", "said": said, "recalled": []})
        asked = await graph.ainvoke({"user": "ann", "said": "which tea", "recalled": []})
        assert asked["recalled"][0] == "I like green tea"
        other = await graph.ainvoke({"user": "bob", "said": "which tea", "recalled": []})
        assert other["recalled"] == []
        plain = StateGraph(State).add_node(remember_sync).add_edge(START, "remember_sync").compile(store=store)
        state = await asyncio.to_thread(plain.invoke, {"user": "ann", "said": "", "recalled": []})
        assert state["recalled"] == ["I like green tea"]
