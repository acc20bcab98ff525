"""The embedder stores vectors in a content-addressed cache, announces them by events and embeds no text twice."""

from collections.abc import Iterator

import pytest
from helpers.openai_server import OpenAIServer
from helpers.sample_events import turn
from helpers.stage import Play, Stage, player

from turnlog.agent.models.factory import make_embedder
from turnlog.agent.recall.best_turns import Recalled
from turnlog.agent.recall.search import Recall
from turnlog.projectors.engine.locks import LockFor
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.registry import find
from turnlog.projectors.rebuild.rebuild import rebuild
from turnlog.projectors.rebuild.verify import verify

ROLES = ("projectors", "reactors")
SAID = ["I ran a marathon in Lisbon.", "My sister Ana paints boats.", "The dentist moved to Oak Street."]


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"embed_poll_s": 0.1, "embedding_base_url": model.url, "embedding_model": "small"}
    return player(nats_url, database_url, ROLES, **settings)


async def say(stage: Stage, thread: str = "t", said: list[str] = SAID) -> None:
    """Appends turns and keeps the embedder waiting until everything is projected, so that it finds all of them at
    once."""
    async with stage.runtime.pool.connection() as conn:
        lock = ("embedder", LockFor.EMBEDDING.value)
        await conn.execute("SELECT pg_advisory_lock(hashtextextended(%s, %s))", lock)
        await stage.runtime.log.append_many([turn(text, thread=thread, minutes=n) for n, text in enumerate(said)])
        await stage.runtime.wait_until_projected()
        await conn.execute("SELECT pg_advisory_unlock(hashtextextended(%s, %s))", lock)


async def recall(stage: Stage, query: str) -> tuple[list[Recalled], str | None]:
    """Returns the results of a recall, and the reason if vectors were not used."""
    embedder = make_embedder(stage.runtime.settings)
    searching = Recall(embedder)
    async with stage.runtime.pool.connection() as conn:
        turns = await searching.search(conn, Scope("default", "t"), query, 1)
    await embedder.close()
    return turns, searching.degraded


def embedded_texts(model: OpenAIServer) -> list[str]:
    return [text for body in model.bodies("embeddings") for text in body["input"]]


async def vectors(stage: Stage, name: str) -> int:
    [(count,)] = await stage.rows("SELECT count(*) FROM memory_vectors WHERE embedding_model = %s", name)
    return int(count)


async def test_vectors_appear_by_events_with_what_they_cost(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await say(stage)
        [embedded] = await stage.until("chunks_embedded", 1)
        [usage] = await stage.all("usage_metered")
        assert (embedded.model, embedded.dimensions, len(embedded.chunk_ids)) == ("small", 64, 3)
        assert (usage.purpose, usage.calls) == ("embedding", 1)
        assert await vectors(stage, "small") == 3
        turns, degraded = await recall(stage, "sister boats")
        assert degraded is None
        assert turns[0].parts.keys() >= {"dense"}
    assert "[8 May 2023] user: I ran a marathon in Lisbon." in embedded_texts(model)


async def test_the_same_text_in_another_thread_asks_no_model_even_after_a_restart(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await say(stage)
        await stage.until("chunks_embedded", 1)
    asked = len(model.requests)
    async with play() as stage:
        await say(stage, "other")
        [embedded] = await stage.until("chunks_embedded", 1, "other")
        assert embedded.dimensions == 64
        assert await vectors(stage, "small") == 6
        assert await stage.all("usage_metered", "other") == []
    assert len(model.requests) == asked


async def test_rebuilding_vectors_asks_no_model_and_gives_the_same_rows(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await say(stage)
        await stage.until("chunks_embedded", 1)
        before = await stage.rows("SELECT id, embedding::text, embedding_model FROM memory_vectors ORDER BY id")
        asked = len(model.requests)
        model.stop()
        await rebuild(stage.runtime.log, stage.runtime.database_url, find("vectors"))
        after = await stage.rows("SELECT id, embedding::text, embedding_model FROM memory_vectors ORDER BY id")
        checked = await verify(stage.runtime.log, stage.runtime.database_url, find("vectors"))
    assert after == before
    assert checked.clean
    assert len(model.requests) == asked


async def test_another_model_embeds_everything_again_and_words_find_it_meanwhile(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await say(stage)
        await stage.until("chunks_embedded", 1)
    model.dimensions = 32
    async with play("projectors", embedding_model="large") as stage:
        turns, _ = await recall(stage, "Where is the dentist?")
        assert turns[0].text == SAID[2]
        assert turns[0].parts.get("dense", 0.0) == 0.0
    async with play(embedding_model="large") as stage:
        embedded = await stage.until("chunks_embedded", 2)
        assert (embedded[1].model, embedded[1].dimensions) == ("large", 32)
        assert await vectors(stage, "large") == 3


async def test_other_dimensions_under_the_same_name_are_refused_and_words_still_find(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await say(stage)
        await stage.until("chunks_embedded", 1)
    model.dimensions = 32
    async with play() as stage:
        await say(stage, said=["A new cat called Miso."])
        turns, degraded = await recall(stage, "marathon")
        assert turns[0].text == SAID[0]
        assert "dimensions" in (degraded or "")
        assert await vectors(stage, "small") == 3


async def test_while_the_embedding_server_is_down_words_find_and_later_the_vectors_catch_up(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await say(stage)
        await stage.until("chunks_embedded", 1)
        model.stop()
        await say(stage, said=["A new cat called Miso."])
        await stage.runtime.wait_until_projected()
        turns, degraded = await recall(stage, "the cat Miso")
        assert turns[0].text == "A new cat called Miso."
        assert degraded is not None
        assert degraded.startswith("keyword search only: ")
        model.start()
        await stage.until("chunks_embedded", 2)
        assert await vectors(stage, "small") == 4


async def test_the_hourly_budget_bounds_embeddings_too(play: Play, model: OpenAIServer) -> None:
    async with play(budget_calls_per_hour=1) as stage:
        await say(stage)
        await stage.until("chunks_embedded", 1)
        await say(stage, said=["A new cat called Miso."])
        await stage.rest()
        assert len(model.requests) == 1
        await stage.rows("UPDATE reactor_spending SET spent_at = spent_at - interval '2 hours' RETURNING 1")
        await stage.until("chunks_embedded", 2)
