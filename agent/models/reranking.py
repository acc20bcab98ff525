"""Reranks search results on a server with POST {base}/rerank in Cohere's format, which llama.cpp, vLLM and Jina offer.

{model, query, documents, top_n} → {"results": [{"index", "relevance_score"}]}, in any order. TEI's own /rerank takes
`texts` and returns a list; it is not supported.
"""

import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from turnlog.agent.models.calls import ResilientClient
from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.models.openai_http import new_client

MAX_CHARS = 2_000  # maximum of a document: a reranker reads about 512 tokens of query and document together


class _Result(BaseModel):
    index: int
    relevance_score: float


class _Reply(BaseModel):
    results: list[_Result]


class Reranker:
    """Gets scores from a server. It asks once and waits at most `timeout_s`, because a person waits for the search, and
    its results have an order even without reranking.

    candidates: the number of turns, best first, that a search passes to `scores`.
    """

    def __init__(
        self, base_url: str, api_key: str | None, model: str, *, timeout_s: float = 0.3, candidates: int = 50
    ) -> None:
        self.model, self.candidates = model, candidates
        self.provider = urlsplit(base_url).hostname or "rerank"
        self._client = new_client(base_url, api_key, timeout_s)
        self._resilient = ResilientClient(base_url, secret=api_key, timeout_s=timeout_s, retries=0, service="rerank")

    async def close(self) -> None:
        await self._client.close()

    async def scores(self, query: str, documents: Sequence[str], asker: str | None = None) -> list[float]:
        """Returns one score for each document, in their order. Higher means more relevant; the scale depends on the
        model. Raises ModelError."""
        cut = [document[:MAX_CHARS].encode("utf-8", "replace").decode() or " " for document in documents]
        return await self._resilient.call(lambda: self._scores(query.encode("utf-8", "replace").decode(), cut), asker)

    async def _scores(self, query: str, documents: list[str]) -> list[float]:
        body = {"model": self.model, "query": query, "documents": documents, "top_n": len(documents)}
        reply = await self._client.post("/rerank", cast_to=dict[str, Any], body=body)
        try:
            scores = {result.index: result.relevance_score for result in _Reply.model_validate(reply).results}
        except ValidationError:
            raise ModelUnavailable(f"{self._resilient.url} gave no list of results with index and score.") from None
        if scores.keys() != set(range(len(documents))) or not all(map(math.isfinite, scores.values())):
            raise ModelUnavailable(
                f"{self._resilient.url} gave {len(scores)} scores for {len(documents)} texts, "
                f"or some that are not numbers."
            )
        return [scores[at] for at in range(len(documents))]
