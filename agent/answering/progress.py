"""Progress of an answer for subscribers: core NATS messages, never stored.

JSON objects: {"kind": "start" | "context" | "text" | "tool" | "result" | "restart" | "end" | "error", "text",
"attempt", "final"}; final: no further attempt follows an error. On start and restart a subscriber drops the text so
far: an earlier attempt died. context: also "context", what the model is given; tool: also "id", "name", "arguments";
result: also "id", "name", "latency_ms", "is_error", with what the tool gave as "text"; error: also "code"; end:
also "finish_reason", of the model.
The answer of record is the event on the log.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from nats.aio.client import Client

from turnlog.events.subjects import progress_subject

Kind = Literal["start", "context", "text", "tool", "result", "restart", "end", "error"]


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
