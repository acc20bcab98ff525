"""If the embedding server hangs, questions are still answered and memories recalled without vectors."""

from typing import Any

import httpx2
import pytest
from helpers.api import Serve
from helpers.servers import eventually
from helpers.stage import MemoryServer

from turnlog.agent.recall import memory_search, search

pytestmark = pytest.mark.slow

FACT = "Ann has a corgi called Sesame."
HANGING = 50


async def degraded(client: httpx2.AsyncClient, query: str) -> str | None:
    recalled = (await client.post("/api/recall", json={"query": query})).json()
    assert FACT in [memory["content"] for memory in recalled["memories"]], recalled
    why: str | None = recalled["memories_degraded"]
    return why


async def test_answers_and_recall_work_and_vectors_follow_when_the_server_answers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_search, "ANSWER_PATIENCE_S", 1.0)
    monkeypatch.setattr(search, "EMBEDDING_PATIENCE_S", 1.0)
    with MemoryServer() as model:
        settings = {"api_base_url": model.url, "model": "m", "embedding_base_url": model.url, "embedding_model": "e"}
        async with serve("agent", "reactors", **settings) as api, api.client() as ann:
            assert (await ann.post("/api/memories", json={"content": FACT})).status_code == 201
            await eventually(lambda: is_whole(ann))
            before = len(model.bodies("embeddings"))
            for _ in range(HANGING):
                model.hang(on="embeddings")
            assert await degraded(ann, "Which dog is called Sesame?")
            assert (await ann.post("/api/threads/t/context", json={"query": "Is Sesame a corgi?"})).status_code == 200
            answered = await ann.post("/api/threads/t/answers", json={"message": "What is the corgi called?"})
            assert answered.status_code == 201, answered.text
            said = (await ann.get("/api/threads/t/turns")).json()["items"]
            assert [turn["role"] for turn in said] == ["user", "assistant"]
            assert len(model.bodies("embeddings")) > before and not model.released.is_set()
            model.released.set()
            await eventually(lambda: is_whole(ann))


async def test_every_interface_tells_the_breaker_whose_texts_fail(serve: Serve) -> None:
    with MemoryServer() as model:
        settings = {"api_base_url": model.url, "model": "m", "embedding_base_url": model.url, "embedding_model": "e"}
        async with serve("reactors", **settings) as api, api.client() as ann, api.client("bob") as bob:
            for client in (ann, bob):
                assert (await client.post("/api/memories", json={"content": FACT})).status_code == 201
                turn = {"role": "user", "content": FACT}
                assert (await client.post("/api/threads/t/turns", json={"turns": [turn]})).status_code < 300
            for client in (ann, bob):
                await eventually(lambda client=client: is_whole(client))
            embedder: Any = api.runtime.models.embedder
            for _ in range(5):
                embedder._resilient.breaker.admit("default/ann")
                embedder._resilient.breaker.failed("default/ann")
            assert "is not called" in (await degraded(ann, "Which corgi?") or "")
            assert await degraded(bob, "Which corgi?") is None
            text = {"model": "e", "input": "Which corgi is it?"}
            statuses = [(await client.post("/v1/embeddings", json=text)).status_code for client in (ann, bob)]
            assert statuses == [503, 200]


async def is_whole(client: httpx2.AsyncClient) -> bool:
    return await degraded(client, "Who is Sesame, a corgi?") is None
