"""Recall over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, Field

from turnlog.agent.recall.recall import recall, recall_document
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.principal import Reader
from turnlog.events.contracts import MemoryKind

router = APIRouter(prefix="/api", tags=["recall"])


class RecallRequest(RequestBody):
    """A search over turns and memories. thread: only this conversation; by default, all of the caller's. topic: only
    turns with this topic, no memories. speaker: only turns of a speaker with this name, or of this user, no memories.

    as_of: only memories, those valid at that time; history: also memories that have ended. explain: also the parts of
    every score.
    """

    query: str = Field(min_length=1, max_length=20_000)
    thread: str | None = Field(None, min_length=1, max_length=255)
    topic: str | None = Field(None, min_length=1, max_length=200)
    speaker: str | None = Field(None, min_length=1, max_length=255)
    k: Annotated[int, Field(ge=1, le=100)] = 5
    as_of: AwareDatetime | None = None
    history: bool = False
    kinds: list[MemoryKind] = Field([])
    min_importance: float = Field(0.0, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1, le=10_000_000)
    keyword_only: bool = False
    explain: bool = False


class RecallResponse(BaseModel):
    """The turns and memories that were found. items: turns, best first. degraded: why turns may be missing, or are
    ranked without vectors or the reranker; null if nothing failed. memories_degraded: why memories were searched
    without vectors.

    confidence: the probability, 0 to 1, that one of them answers the question; null if that cannot be judged, as for a
    summary. question: how the query was understood, if `explain` is set.
    """

    query: str
    items: list[dict[str, Any]]
    memories: list[dict[str, Any]]
    degraded: str | None
    confidence: float | None
    memories_degraded: str | None
    question: dict[str, Any] | None


@router.post("/recall")
async def search(body: RecallRequest, caller: Reader) -> RecallResponse:
    """Searches turns and memories by meaning, words, names and dates."""
    asked = body.model_dump(exclude={"query", "explain"})
    if body.thread is not None:
        *_, asked["thread"] = await caller.owns(body.thread, "reader")
    recalled = await recall(caller.runtime, caller.tenant, body.query, user=caller.user, **asked)
    return RecallResponse(**recall_document(body.query, recalled, body.explain))
