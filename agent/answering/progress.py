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

from turnlog.agent.answering.pieces import Piece, Restarted, Round, Seen, Text, ToolReturned, ToolUsed
from turnlog.agent.models.protocol import CallPiece
from turnlog.events.subjects import progress_subject

Kind = Literal["start", "context", "text", "tool", "result", "restart", "end", "error"]


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

    async def show(self, piece: Piece) -> None:
        """Publishes a piece of the answer; the piece that `piece_of` returns for the step."""
        match piece:
            case Text(text):
                await self.tell("text", text)
            case ToolUsed(id_, name, arguments):
                await self.tell("tool", f"{name} {arguments}", id=id_, name=name, arguments=arguments)
            case ToolReturned(id_, name, result, took, is_error):
                await self.tell("result", result, id=id_, name=name, latency_ms=took, is_error=is_error)
            case Restarted():
                await self.tell("restart")
            case CallPiece() | Round():
                pass  # a subscriber sees whole calls, and the end


def piece_of(step: ProgressStep) -> Seen | Text | ToolUsed | ToolReturned | Restarted | None:
    """None for the begin, the end and errors, and for a step without what its kind has."""
    match step:
        case ProgressStep(kind="context", context=Seen() as seen):
            return seen
        case ProgressStep(kind="text", text=text):
            return Text(text)
        case ProgressStep(kind="tool", id=str(id_), name=str(name), arguments=str(arguments)):
            return ToolUsed(id_, name, arguments)
        case ProgressStep(kind="result", id=str(id_), name=str(name), latency_ms=int(took)):
            return ToolReturned(id_, name, step.text, took, step.is_error)
        case ProgressStep(kind="start" | "restart"):
            return Restarted()
    return None


def progress_of(nc: Client, tenant: str, thread: str, request: UUID, attempt: int) -> Progress:
    return Progress(nc, progress_subject(tenant, thread, str(request)), attempt)
