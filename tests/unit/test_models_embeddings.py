"""Tests the embedding client with a real local server."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.openai_server import OpenAIServer

from turnlog.agent import metrics
from turnlog.agent.models.calls import ResilientClient
from turnlog.agent.models.errors import BreakerOpen, ModelRefused, ModelUnavailable
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.openai_embeddings import OpenAIEmbedder, ServedOrOffline, batches
from turnlog.agent.models.reranking import Reranker
from turnlog.agent.settings import OFFLINE_VECTORS, Settings


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(dimensions=32) as running:
        yield running


async def _no_wait(seconds: float) -> None:
    pass


@pytest.fixture
async def embedder(server: OpenAIServer) -> AsyncIterator[Callable[..., OpenAIEmbedder]]:
    """Yields a function that makes clients, which are closed after the test."""
    opened: list[OpenAIEmbedder] = []

    def new() -> OpenAIEmbedder:
        resilient = ResilientClient(server.url, secret=server.key, timeout_s=60, sleep=_no_wait)
        model = "text-embedding-3-small"
        opened.append(OpenAIEmbedder(server.url, server.key, model, count_tokens=len, resilient=resilient))
        return opened[-1]

    yield new
    for model in opened:
        await model.close()


async def test_vectors_are_float32_units_in_the_order_of_the_texts(embedder, server):
    model = embedder()
    vectors = await model.embed_passages(["red apple", "green pear", "red apple"])
    assert (vectors.dtype, vectors.shape, model.dimensions) == (np.float32, (3, 32), 32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.array_equal(vectors[0], vectors[2]) and not np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(vectors[0], await model.embed_query("red apple"))


async def test_a_question_asked_again_is_sent_once(embedder, server):
    model = embedder()
    first = await model.embed_query("red apple")
    assert np.array_equal(await model.embed_query("red apple"), first)
    await model.embed_query("green pear")
    assert [body["input"] for body in server.bodies("embeddings")] == [["red apple"], ["green pear"]]


async def test_no_texts_make_no_call(embedder, server):
    assert (await embedder().embed_passages([])).shape == (0, 0)
    assert server.requests == []


async def test_many_texts_are_sent_in_batches_and_metered_once(embedder, server):
    metered = []
    vectors = await embedder().embed_passages([f"text {i}" for i in range(300)], metered.append)
    assert len(vectors) == 300
    assert [len(body["input"]) for body in server.bodies("embeddings")] == [256, 44]
    assert (metered[0].calls, metered[0].tokens_in, metered[0].price_known) == (2, 600, True)


def test_a_batch_ends_before_a_hundred_thousand_characters():
    assert [len(b) for b in batches(["x" * 60_000, "y" * 60_000, "", "z"])] == [1, 3]


async def test_vectors_of_another_size_than_earlier_ones_are_refused_with_the_fix(embedder, server):
    model = embedder()
    await model.embed_query("x")
    server.dimensions = 16
    with pytest.raises(ModelRefused, match=r"16 dimensions, earlier ones had 32; .* MEMORY_EMBEDDING_MODEL"):
        await model.embed_query("y")


async def test_a_missing_vector_is_an_error_and_never_a_shifted_row(embedder, server):
    for _ in range(4):
        server.vectors([[1.0] * 32])
    with pytest.raises(ModelUnavailable, match="1 vectors for 2 texts"):
        await embedder().embed_passages(["a", "b"])


async def test_an_index_that_is_not_a_number_is_an_error(embedder, server):
    for _ in range(4):
        server.vectors([[float("nan")] + [1.0] * 31])
    with pytest.raises(ModelUnavailable, match="finite numbers"):
        await embedder().embed_query("x")


async def test_half_a_character_breaks_no_request(embedder, server):
    assert (await embedder().embed_query("tea \ud800")).shape == (32,)
    assert server.bodies("embeddings")[0]["input"] == ["tea ?"]


async def test_a_failing_server_is_retried(embedder, server):
    server.fail(500, times=2, on="embeddings")
    assert (await embedder().embed_query("x")).shape == (32,)
    assert len(server.requests) == 3


async def test_texts_of_one_user_that_fail_do_not_close_the_server_to_others(embedder, server):
    model = embedder()
    server.fail(500, times=20, on="embeddings")
    for at in range(5):
        with pytest.raises(ModelUnavailable):
            await (model.embed_query(f"x {at}", "t/ann") if at % 2 else model.embed_documents(["x"], None, "t/ann"))
    with pytest.raises(BreakerOpen):
        await model.embed_query("y", "t/ann")
    assert (await model.embed_query("y", "t/bob")).shape == (32,)


async def test_searches_of_one_user_that_cannot_be_reranked_do_not_close_the_server_to_others(server):
    reranker = Reranker(server.url, server.key, "r", timeout_s=20)
    server.fail(500, times=5, on="rerank")
    for _ in range(5):
        with pytest.raises(ModelUnavailable):
            await reranker.scores("x", ["y"], "t/ann")
    with pytest.raises(BreakerOpen):
        await reranker.scores("x", ["y"], "t/ann")
    assert len(await reranker.scores("x", ["y"], "t/bob")) == 1
    await reranker.close()


MALFORMED = {
    "strings": [["0.1", "0.2"], ["0.3", "0.4"]],
    "words": [["a", "b"], ["c", "d"]],
    "nulls": [None, None],
    "numbers": [0.5, 0.25],
    "a place without a number": [[0.1, None], [0.1, 0.2]],
    "not a number": [[0.1, float("nan")], [0.1, 0.2]],
    "infinity": [[0.1, 1e300], [0.1, 0.2]],
    "several lengths": [[0.1, 0.2], [0.1]],
    "no places": [[], []],
    "too few": [[0.1, 0.2]],
    "lists of lists": [[[0.1], [0.2]], [[0.1], [0.2]]],
    "text that is not base64": ["@@@", "@@@"],
    "base64 of half a number": ["AAA=", "AAA="],
}


@pytest.mark.parametrize("vectors", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_vectors_are_a_model_error(embedder, server, vectors):
    server.answer_embeddings(
        {"data": [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]}, times=4
    )
    with pytest.raises(ModelUnavailable):
        await embedder().embed_passages(["x", "y"])


@pytest.mark.parametrize("reply", [{"data": None}, {"data": "x"}, {"data": [1, 2]}, [], "x", None], ids=repr)
async def test_a_reply_of_another_form_is_a_model_error(embedder, server, reply):
    server.answer_embeddings(reply, times=4)
    with pytest.raises(ModelUnavailable):
        await embedder().embed_passages(["x", "y"])


@pytest.fixture
async def default_embedder(server: OpenAIServer) -> AsyncIterator[Callable[..., Any]]:
    """Yields a function that makes the embedder for settings with a chat server and no embedding model."""
    opened: list[Any] = []

    def new(**settings: Any) -> Any:
        opened.append(make_embedder(Settings(api_base_url=server.url, **settings)))
        return opened[-1]

    yield new
    for model in opened:
        await model.close()


LACKING = {
    "llama.cpp": (501, "This server does not support embeddings. Start it with `--embeddings`"),
    "Ollama": (404, 'model "embedding-3" not found, try pulling it first'),
    "vLLM": (400, "The model does not support Embeddings API"),
    "an older llama.cpp": (500, "This server does not support embeddings"),
}


@pytest.mark.parametrize(("status", "said"), LACKING.values(), ids=LACKING)
async def test_the_offline_model_is_used_if_the_server_has_no_embeddings(
    default_embedder, server, caplog, status, said
):
    server.fail(status, message=said, on="embeddings")
    model, another = default_embedder(), default_embedder()
    assert model.model == "embedding-3"
    await model.ready()
    await another.ready()
    assert (model.model, another.model, model.provider) == (OFFLINE_VECTORS, OFFLINE_VECTORS, "local")
    assert (await model.embed_query("red apple")).shape == (384,)
    assert len(server.requests) == 1
    [line] = [record.message for record in caplog.records if "embeddings" in record.message]
    assert "the offline model makes vectors" in line


async def test_no_vector_of_the_offline_model_gets_the_name_of_the_servers_model(default_embedder, server):
    server.fail(501, on="embeddings")
    model = default_embedder()
    with pytest.raises(ModelUnavailable, match="from now on"):
        await model.embed_passages(["x"])  # the caller stores the vectors under the name that it has read before
    assert model.model == OFFLINE_VECTORS
    assert (await model.embed_passages(["x"])).shape == (1, 384)


async def test_a_server_with_embeddings_keeps_them_and_one_that_is_away_is_asked_again(embedder, server):
    model = ServedOrOffline(embedder(), cores=1, background=False, probe_again_s=0.0)
    server.fail(503, on="embeddings")
    await model.ready()
    assert not model.is_known
    await model.ready()
    assert (model.model, model.is_known) == ("text-embedding-3-small", True)
    assert (await model.embed_passages(["x"])).shape == (1, 32)


async def test_an_embedding_model_that_was_named_is_not_replaced(default_embedder, server):
    server.fail(501, message="no embeddings here", on="embeddings")
    model = default_embedder(embedding_model="embedding-3")
    with pytest.raises(ModelRefused, match="501: no embeddings here"):
        await model.embed_query("x")
    assert len(server.requests) == 1


async def test_the_breaker_of_the_embedder_has_a_separate_name(server):
    model = OpenAIEmbedder(server.url, server.key, "e", count_tokens=len)
    for _ in range(5):
        model._resilient.breaker.admit()
        model._resilient.breaker.failed()
    metrics.reset_breakers("llm")
    assert metrics.breakers()["embeddings"] == "open"
    metrics.reset_breakers("embeddings")
    assert (await model.embed_query("x")).shape == (32,)
    await model.close()
