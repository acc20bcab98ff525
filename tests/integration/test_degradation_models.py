"""Short-term memory works while a model is unavailable or answers too long, and after the model has recovered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from helpers.lone_reactors import making_checkpoints
from helpers.sample_events import turn
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.context import counter_for
from turnlog.agent.conversations.sessions.session_memory import ShortTermMemory
from turnlog.agent.conversations.sessions.value import MemoryCreateRequest, MemoryQueryRequest, MemoryWriteRequest
from turnlog.agent.models import calls
from turnlog.agent.models.calls import Breaker
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.recall.hybrid import hybrid_history
from turnlog.agent.recall.search import Recall

ROLES = ("projectors", "reactors")
WINDOW = 400
ASKED = MemoryQueryRequest(conversation_id="t", query="And now?")


@pytest.fixture
async def play(nats_url: str, database_url: str, model: MemoryServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "model_timeout_s": 20.0}
    return player(nats_url, database_url, ROLES, **settings, recent_turns=2, session_window=WINDOW)


@asynccontextmanager
async def memory_of(stage: Stage) -> AsyncIterator[ShortTermMemory]:
    async with ShortTermMemory(stage.runtime.log, stage.runtime.pool, stage.runtime.settings) as memory:
        await memory.create(MemoryCreateRequest(conversation_id="t", user_id="ann"))
        yield memory


async def talk(memory: ShortTermMemory, first: int, last: int) -> None:
    for n in range(first, last + 1):
        said = MemoryWriteRequest(
            conversation_id="t",
            user_query=f"Question {n} about {'a city and its museums ' * 3}",
            agent_response=f"Answer {n} about {'a city and its museums ' * 3}",
        )
        await memory.write_turn(said)


async def test_a_checkpoint_whose_retries_fail_leaves_the_full_history_and_a_later_one_succeeds(
    play: Play, model: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "Breaker", partial(Breaker, open_s=0.02))
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.1)  # longer than the breaker stays open
    async with play("projectors") as stage, making_checkpoints(stage, pause_s=0.1), memory_of(stage) as memory:
        await talk(memory, 1, 12)
        model.stop()
        assert (await memory.query_memory_context(ASKED)).should_checkpoint_summary
        [failed] = await stage.until("segment_checkpoint_failed", 1)
        assert failed.attempts == 4
        assert failed.error.startswith("model-unavailable: The connection to the model")
        during = await memory.query_memory_context(ASKED)
        assert during.mode == "FULL_HISTORY"
        assert "Question 1 about" in during.full_history
        model.start()
        await talk(memory, 13, 13)
        assert (await memory.query_memory_context(ASKED)).should_checkpoint_summary
        [made] = await stage.until("segment_checkpointed", 1)
        after = await memory.query_memory_context(ASKED)
    assert made.summary == "They planned a trip."
    assert after.mode == "SUMMARY_N"
    assert after.history.startswith("[Conversation Summary]\nThey planned a trip.")
    assert "Question 13 about" in after.history
    assert "Question 1 about" not in after.full_history


async def test_a_summary_that_is_far_too_long_is_cut_to_the_limit(play: Play, model: MemoryServer) -> None:
    trips = [f"They planned city {a}, then museum {b}." for a in range(1, 10) for b in range(1, 10)]
    model.said["summary"], model.said["compress"] = " ".join(trips), " ".join(trips[:40])
    async with play(max_summary_tokens=50) as stage, memory_of(stage) as memory:
        await talk(memory, 1, 12)
        await memory.query_memory_context(ASKED)
        [made] = await stage.until("segment_checkpointed", 1)
        after = await memory.query_memory_context(ASKED)
    assert made.summary.startswith("They planned city 1, then museum 1.")
    assert counter_for("test-model").text(made.summary) <= 50
    assert after.mode == "SUMMARY_N"
    assert after.token_ratio < 0.75


async def test_without_the_embedding_model_history_is_found_by_its_words(play: Play, model: MemoryServer) -> None:
    said = ["I ran a marathon in Lisbon.", "Well done!", *(f"Small talk number {n}." for n in range(8))]
    async with play(embedding_base_url=model.url, embedding_model="words", embed_poll_s=0.1) as stage:
        await stage.runtime.log.append_many(
            [turn(text, "user" if n % 2 == 0 else "assistant", minutes=n) for n, text in enumerate(said)]
        )
        await stage.until("chunks_embedded", 1)
        well, by_vectors = await history(stage, "Where was the marathon?")
        assert by_vectors is None
        model.stop()
        texts, degraded = await history(stage, "Where was the marathon?")
        assert texts == well
        assert texts[:2] == said[:2]
        assert (degraded or "").startswith("keyword search only: ")
        model.start()
        assert await history(stage, "Which marathon did I run?") == (well, None)


async def history(stage: Stage, query: str) -> tuple[list[Any], str | None]:
    """Returns the texts of a hybrid history, and the reason why vectors were not used."""
    embedder = make_embedder(stage.runtime.settings)
    async with stage.runtime.pool.connection() as conn:
        result = await hybrid_history(conn, Recall(embedder), "default", "t", query, recent_turns=2, top_k=1)
    await embedder.close()
    return [message.content for message in result.messages], result.degraded
