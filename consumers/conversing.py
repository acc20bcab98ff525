"""One turn of a chat from the asker's side: watch, ask, show, and take the answer of record from the log."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnlog.agent.plain import content_text
from turnlog.consumers.answering.request import Question, answer_id, ask, question_events
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import progress_subject
from turnlog.projectors.messages import message_by_event

ANSWER_TIMEOUT_S = 180.0
LOOK_AGAIN_S = 1.0


class NoAnswer(TurnlogError):
    """The model could not answer; the question stays on the log."""

    code = "no-answer"


@dataclass(frozen=True, slots=True)
class Conversation:
    tenant: str
    thread: str
    user: str | None = None
    model: str | None = None


async def talk(runtime: Runtime, place: Conversation, text: str, show: Callable[[str], None]) -> dict[str, Any]:
    """Asks and waits; show gets the text as it streams. Raises NoAnswer."""
    asked = question_events(Question(place.tenant, place.thread, text, place.user, place.model))
    arrived: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        arrived.put_nowait(json.loads(message.data))

    subject = progress_subject(place.tenant, place.thread, str(asked.request.id))
    watching = await runtime.log.nc.subscribe(subject, cb=on_message)
    try:
        await runtime.log.nc.flush()
        seq = await ask(runtime.log, asked)
        return await _follow(runtime, asked.request, seq, arrived, show)
    finally:
        await watching.unsubscribe()


async def _follow(
    runtime: Runtime,
    request: Event,
    seq: int,
    arrived: "asyncio.Queue[dict[str, Any]]",
    show: Callable[[str], None],
) -> dict[str, Any]:
    """The stream may be lost, the log may not: now and then it is asked whether the answer is there."""
    shown, problem = "", ""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_TIMEOUT_S
    while loop.time() < deadline:
        step = await _next(arrived)
        match step["kind"]:
            case "text":
                shown += step["text"]
                show(step["text"])
            case "start" | "restart" if shown:
                shown = ""
                show("\n[the answer starts again]\n")
            case "error":
                problem = step["text"]
                if step.get("final"):
                    raise NoAnswer(problem)
        if step["kind"] in ("end", "silence") and (found := await _recorded(runtime, request)):
            if not shown:
                show(found["answer"])
            return found
    raise NoAnswer(problem or f"no answer came within {ANSWER_TIMEOUT_S:g} s; is an agent running (`turnlog up`)?")


async def _next(arrived: "asyncio.Queue[dict[str, Any]]") -> dict[str, Any]:
    try:
        async with asyncio.timeout(LOOK_AGAIN_S):
            return await arrived.get()
    except TimeoutError:
        return {"kind": "silence"}


async def _recorded(runtime: Runtime, request: Event) -> dict[str, Any] | None:
    await runtime.settle(names=("messages",))
    async with runtime.pool.connection() as conn:
        message = await message_by_event(conn, request.tenant, request.thread, answer_id(request.id, "answer"))
    if message is None:
        return None
    return {
        "thread": request.thread,
        "question_id": str(request.causation),
        "answer_id": str(message.event_id),
        "seq": message.seq,
        "model": message.model,
        "answer": content_text(message.content),
    }
