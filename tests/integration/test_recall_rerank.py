"""Reranking uses the server's order if it answers correctly and in time, else turnlog's own order."""

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Settled
from helpers.openai_server import OpenAIServer
from helpers.sample_events import turn
from helpers.stage import Play, player

from turnlog.agent.answering.context import context_of
from turnlog.agent.models.reranking import Reranker
from turnlog.agent.recall.best_turns import Recalled
from turnlog.agent.recall.recall import recall, recall_document
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import Event
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope

SAID = [
    "The cat sat in the garden.",
    "Another cat ran away.",
    "A cat and a dog and a fox met.",
    "My cat likes fish.",
    "The weather was fine.",
]
QUESTION = "Which cat met a dog and a fox"


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


@pytest.fixture
def play(nats_url: str, database_url: str, server: OpenAIServer) -> Play:
    settings = {"rerank_base_url": server.url, "rerank_model": "ranker", "rerank_timeout_s": 20.0}
    return player(nats_url, database_url, ("projectors",), **settings)


def said() -> list[Event]:
    return [turn(text, user="ann", minutes=n) for n, text in enumerate(SAID)]


async def search(db: Connection, recall: Recall, k: int = 5, query: str = "cat") -> list[Recalled]:
    return await recall.search(db, Scope("default", "t"), query, k)


def texts(turns: list[Recalled]) -> list[str]:
    return [turn.text for turn in turns]


@pytest.mark.usefixtures("running_projectors")
class TestSearch:
    async def test_the_server_gets_the_best_turns_and_its_scores_decide_the_order(
        self, log: Log, db: Connection, settled: Settled, server: OpenAIServer
    ) -> None:
        await log.append_many(said())
        await settled()
        plain = await search(db, Recall(None))
        reranker = Reranker(server.url, server.key, "ranker", timeout_s=20, candidates=3)
        searching = Recall(None, reranker)
        server.rank(
            [
                {"index": 2, "relevance_score": 7.5},
                {"index": 0, "relevance_score": -3},
                {"index": 1, "relevance_score": 0.1},
            ]
        )
        turns = await search(db, searching, k=2)
        await reranker.close()
        [sent] = server.bodies("rerank")
        assert sent["documents"] == [f"[8 May 2023] user: {turn.text}" for turn in plain[:3]]
        assert (sent["model"], sent["query"], sent["top_n"]) == ("ranker", "cat", 3)
        assert texts(turns) == [plain[2].text, plain[1].text]
        assert [turn.rerank for turn in turns] == [7.5, 0.1]
        assert turns[0].document(explain=True)["rerank"] == 7.5
        assert searching.degraded is None

    @pytest.mark.parametrize(
        "results",
        [
            [{"index": at, "relevance_score": float(at)} for at in (0, 1, 2, 7)],
            [{"index": at, "relevance_score": float(at)} for at in (0, 1, 2)],
            [{"index": at, "relevance_score": float("nan")} for at in range(4)],
            [{"index": 0, "relevance_score": 1.0}] * 4,
            [{"score": 1.0}] * 4,
            "none",
            "hang",
            "malformed",
            "error",
            "away",
        ],
        ids=["index", "fewer", "nan", "repeated", "form", "text", "hang", "malformed", "error", "away"],
    )
    async def test_if_the_reranker_fails_the_order_stays_and_degraded_says_so(
        self, log: Log, db: Connection, settled: Settled, server: OpenAIServer, results: Any
    ) -> None:
        await log.append_many(said())
        await settled()
        plain = await search(db, Recall(None))
        match results:
            case "hang":
                server.hang(on="rerank")
            case "malformed":
                server.malformed(on="rerank")
            case "error":
                server.fail(503, on="rerank")
            case "away":
                server.stop()
            case _:
                server.rank(results)
        reranker = Reranker(server.url, server.key, "ranker", timeout_s=0.3 if results == "hang" else 20)
        searching = Recall(None, reranker)
        turns = await search(db, searching)
        await reranker.close()
        assert turns == plain
        assert (searching.degraded or "").startswith("not reranked: ")
        assert server.key not in (searching.degraded or "")

    async def test_a_server_that_fails_repeatedly_is_not_asked(
        self, log: Log, db: Connection, settled: Settled, server: OpenAIServer
    ) -> None:
        await log.append_many(said())
        await settled()
        reranker = Reranker(server.url, server.key, "ranker", timeout_s=20)
        searching = Recall(None, reranker)
        server.fail(500, times=5, on="rerank")
        for _ in range(7):
            await search(db, searching)
        await reranker.close()
        assert len(server.bodies("rerank")) == 5
        assert "is not called" in (searching.degraded or "")


async def test_recall_and_the_episodes_of_a_context_are_reranked_alike(play: Play, server: OpenAIServer) -> None:
    async with play() as stage:
        small_talk = [turn(f"Small talk {n}.", ("user", "assistant")[n % 2], minutes=9 + n) for n in range(20)]
        await stage.runtime.log.append_many([*said(), *small_talk])
        recalled = await recall(stage.runtime, "default", QUESTION, thread="t", k=2)
        document = recall_document(QUESTION, recalled, explain=True)
        await context_of(stage.runtime, "default", "t", query=QUESTION, tokens=150)
        alone = await recall(stage.runtime, "default", QUESTION, thread="t", k=2, keyword_only=True)
    assert recalled.turns[0].text == SAID[2]
    assert document["items"][0]["rerank"] == recalled.turns[0].rerank == 5.0
    first, second = server.bodies("rerank")
    assert first["query"] == second["query"] == QUESTION
    assert alone.turns[0].rerank is None
