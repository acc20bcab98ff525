"""The tool loop of one answer: stream, run tools, stream again, until there is text."""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from turnlog.agent.answering.progress import Progress
from turnlog.agent.answering.recall_tool import SCHEMA, ToolResult
from turnlog.agent.models import observed
from turnlog.agent.models.errors import EmptyAnswer, ModelModerated
from turnlog.agent.models.protocol import ChatModel, ChatRequest, Completion
from turnlog.events.contracts import ToolCall

MAX_ROUNDS = 4
RunTool = Callable[[ToolCall], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class Round:
    """One call of the model and the results of its tool calls (none in the last round)."""

    completion: Completion
    results: tuple[tuple[ToolCall, ToolResult], ...] = ()


@dataclass(slots=True)
class Answer:
    rounds: list[Round] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.rounds[-1].completion.text if self.rounds else ""

    @property
    def chunks(self) -> tuple[str, ...]:
        return tuple(c for r in self.rounds for _, result in r.results for c in result.chunks)

    @property
    def memories(self) -> tuple[UUID, ...]:
        return tuple(m for r in self.rounds for _, result in r.results for m in result.memories)


async def answer(model: ChatModel, first: ChatRequest, run_tool: RunTool, progress: Progress) -> Answer:
    """first: the request of the first round, without tools. The last round gets none, so that the model must answer
    with text. Raises ModelError."""
    made, wire = Answer(), list(first.messages)
    for number in range(MAX_ROUNDS):
        tools = [SCHEMA] if number < MAX_ROUNDS - 1 else []
        completion = await _stream(model, replace(first, messages=wire, tools=tools), progress)
        results = [(call, await _run(call, run_tool, progress)) for call in completion.tool_calls]
        made.rounds.append(Round(completion, tuple(results)))
        if not results:
            return made
        wire += [_call_message(completion), *(_result_message(call, result) for call, result in results)]
    return made


async def _run(call: ToolCall, run_tool: RunTool, progress: Progress) -> ToolResult:
    await progress.tell("tool", f"{call.name} {call.arguments}", id=call.id, name=call.name, arguments=call.arguments)
    started = time.perf_counter()
    with observed.tool(call.name, call.id, known=call.name == SCHEMA["function"]["name"]):
        result = await run_tool(call)
    took = round((time.perf_counter() - started) * 1000)
    wrong = result.is_error
    await progress.tell("result", result.text, id=call.id, name=call.name, latency_ms=took, is_error=wrong)
    return result


async def _stream(model: ChatModel, request: ChatRequest, progress: Progress) -> Completion:
    final: Completion | None = None
    async for delta in model.stream(request):
        if delta.restarted:
            await progress.tell("restart")
        if delta.text:
            await progress.tell("text", delta.text)
        final = delta.final or final
    assert final is not None
    if not final.text.strip() and not final.tool_calls:
        if final.finish_reason == "content_filter":
            raise ModelModerated(f"The moderation of {final.model} withheld the answer.")
        raise EmptyAnswer(f"The answer of {final.model} was empty ({final.finish_reason}).", final.usage)
    return final


def _call_message(completion: Completion) -> dict[str, Any]:
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments(c.arguments)}}
        for c in completion.tool_calls
    ]
    return {"role": "assistant", "content": completion.text or None, "tool_calls": calls}


def _arguments(text: str) -> str:
    """Replaces arguments that are not JSON, which models produce and some servers refuse in the history."""
    try:
        json.loads(text)
    except ValueError:
        return "{}"
    return text


def _result_message(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": result.text}
