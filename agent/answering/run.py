"""Runs an answer: calls the model, runs the agent's tools that it asks for, and calls it again, until there is text."""

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from turnlog.agent.answering.pieces import Piece, Restarted, Round, Text, ToolReturned, ToolUsed
from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.models import observed
from turnlog.agent.models.errors import EmptyAnswer, ModelModerated
from turnlog.agent.models.protocol import CallPiece, ChatModel, ChatRequest, Completion
from turnlog.events.contracts import ToolCall

MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Tools:
    """The agent's own tools. schemas: as the OpenAI API takes them. run: returns what is wrong with a call as its
    result."""

    schemas: Sequence[Mapping[str, Any]]
    run: Callable[[ToolCall], Awaitable[ToolResult]]

    @property
    def names(self) -> set[str]:
        return {schema["function"]["name"] for schema in self.schemas}


async def run(model: ChatModel, request: ChatRequest, tools: Tools | None = None) -> AsyncGenerator[Piece]:
    """Yields the answer's pieces as they come, a Round after each call of the model.

    Without tools of the agent there is one round: the request's own tools are run by whoever sent it. The last of
    MAX_ROUNDS gets no tools of the agent, so that the model must answer with text. Raises ModelError.
    """
    messages = list(request.messages)
    for number in range(MAX_ROUNDS):
        own = tools.schemas if tools and number < MAX_ROUNDS - 1 else ()
        completion: Completion | None = None
        call_of_model = _call(model, replace(request, messages=messages, tools=[*request.tools, *own]))
        async with aclosing(call_of_model) as pieces:
            async for piece in pieces:
                if isinstance(piece, Completion):
                    completion = piece
                else:
                    yield piece
        assert completion is not None, "a stream ends with its completion"
        results: list[tuple[ToolCall, ToolResult]] = []
        if tools:
            for call in completion.tool_calls:
                yield ToolUsed(call.id, call.name, call.arguments)
                started = time.perf_counter()
                with observed.tool(call.name, call.id, known=call.name in tools.names):
                    result = await tools.run(call)
                took = round((time.perf_counter() - started) * 1000)
                yield ToolReturned(call.id, call.name, result.text, took, result.is_error)
                results.append((call, result))
        yield Round(completion, tuple(results))
        if not results:
            return
        messages += [_call_message(completion), *(_result_message(call, result) for call, result in results)]


def check_not_empty(completion: Completion) -> None:
    """Raises EmptyAnswer, ModelModerated for an answer without text and calls."""
    if completion.text.strip() or completion.tool_calls:
        return
    if completion.finish_reason == "content_filter":
        raise ModelModerated(f"The moderation of {completion.model} withheld the answer.")
    reason = completion.finish_reason
    raise EmptyAnswer(f"The answer of {completion.model} was empty ({reason}).", completion.usage)


async def _call(model: ChatModel, request: ChatRequest) -> AsyncGenerator[Text | CallPiece | Restarted | Completion]:
    """The stream of one call; tool calls that came whole at its end are pieces too."""
    came = False
    async for delta in model.stream(request):
        if delta.restarted:
            yield Restarted()
        if delta.text:
            yield Text(delta.text)
        for piece in delta.calls:
            came = True
            yield piece
        if delta.final is not None:
            for index, call in enumerate(() if came else delta.final.tool_calls):
                yield CallPiece(index, call.id, call.name, call.arguments)
            yield delta.final


def _call_message(completion: Completion) -> dict[str, Any]:
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _json(c.arguments)}}
        for c in completion.tool_calls
    ]
    return {"role": "assistant", "content": completion.text or None, "tool_calls": calls}


def _json(arguments: str) -> str:
    """Replaces arguments that are not JSON, which models produce and some servers refuse in the history."""
    try:
        json.loads(arguments)
    except ValueError:
        return "{}"
    return arguments


def _result_message(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": result.text}
