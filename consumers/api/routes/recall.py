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
    """A search over turns and memories. thread: only of this conversation; by default of all the caller's. topic: only
    turns with it, no memories. speaker: only turns of somebody with this name, or of this user, no memories.

    as_of: only memories, those that held then; history: memories that ended too. explain: the parts of every score.
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
    """The turns and memories that were found. items: turns, best first. degraded, memories_degraded: why vectors took
    no part.

    confidence: the chance that something here answers it, 0 to 1; below 0.5 an answer is less likely than none. null
    where that cannot be judged, as for a summary. question: how it was read, with explain.
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
    """Turns and memories that a question is about, by meaning, words, names and dates."""
    asked = body.model_dump(exclude={"query", "explain"})
    if body.thread is not None:
        *_, asked["thread"] = await caller.owns(body.thread, "reader")
    recalled = await recall(caller.runtime, caller.tenant, body.query, user=caller.user, **asked)
    return RecallResponse(**recall_document(body.query, recalled, body.explain))
