"""Progress of an answer for subscribers: core NATS messages, never stored.

Each is a ProgressStep as JSON. On start and restart a subscriber drops the text so far: an earlier attempt died.
context: also "context"; tool: also "id", "name", "arguments"; result: also "id", "name", "latency_ms", "is_error", with
what the tool gave as "text"; error: also "code", "retry_after_s"; end: also "finish_reason".
The answer of record is the event on the log.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from nats.aio.client import Client
from pydantic import BaseModel, Field

from turnlog.events.subjects import progress_subject

Kind = Literal["start", "context", "text", "tool", "result", "restart", "end", "error"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the model is given with the question. tiers: {"tier", "tokens", "limit", "turns"} each; memories: ids of
    long-term memories; dropped: how many turns are left out. degraded: which rows are incomplete, while they are
    rebuilt."""

    tiers: list[dict[str, Any]]
    memories: list[str]
    dropped: int
    degraded: str | None = None


class ProgressStep(BaseModel):
    """A step of an answer under way. Never stored: the final answer is the event in the log."""

    kind: Kind
    text: str = ""
    attempt: int = Field(1, description="Higher after a restart: what was shown before is void")
    final: bool = Field(False, description="No further attempt follows an error")
    code: str | None = Field(None, description="Of an error")
    retry_after_s: float | None = Field(None, description="Of an error: when a new question may be answered")
    finish_reason: str | None = Field(None, description="Of the end: why the model ended")
    context: Seen | None = None
    id: str | None = Field(None, description="Of a tool's call, with name and arguments, and of its result")
    name: str | None = None
    arguments: str | None = Field(None, description="JSON, as the model wrote them")
    latency_ms: int | None = Field(None, description="Of a tool's call")
    is_error: bool = Field(False, description="Whether a tool's result says what is wrong with the call")


@dataclass(frozen=True, slots=True)
class Progress:
    """Publishes the steps of one answer. Losing one is harmless: the log has the answer."""

    nc: Client
    subject: str
    attempt: int

    async def tell(self, kind: Kind, text: str = "", final: bool = False, **more: Any) -> None:
        step = {"kind": kind, "text": text, "attempt": self.attempt, "final": final, **more}
        body = json.dumps(step, ensure_ascii=False)
        await self.nc.publish(self.subject, body.encode(errors="replace"))


def progress_of(nc: Client, tenant: str, thread: str, request: UUID, attempt: int) -> Progress:
    return Progress(nc, progress_subject(tenant, thread, str(request)), attempt)
