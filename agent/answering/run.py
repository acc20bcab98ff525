"""Runs an answer by a policy, which calls the model and the tools of the agent."""

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


# How an answer is made: calls the model by `call_model` and tools by `use_tool`, and ends with a Round without results.
Policy = Callable[[ChatModel, ChatRequest, Tools | None], AsyncGenerator[Piece]]


def run(
    model: ChatModel, request: ChatRequest, tools: Tools | None = None, policy: Policy | None = None
) -> AsyncGenerator[Piece]:
    """Yields the answer's pieces as they come, a Round after each call of the model. policy: None is tool_loop.

    Raises ModelError.
    """
    return (policy or tool_loop)(model, request, tools)


async def tool_loop(model: ChatModel, request: ChatRequest, tools: Tools | None) -> AsyncGenerator[Piece]:
    """Calls the model, and again with the results of the tools that it asks for, until there is text.

    Without tools of the agent there is one round: the request's own tools are run by whoever sent it. The last of
    MAX_ROUNDS gets no tools of the agent, so that the model must answer with text.
    """
    messages = list(request.messages)
    for number in range(MAX_ROUNDS):
        own = tools.schemas if tools and number < MAX_ROUNDS - 1 else ()
        completion: Completion | None = None
        call_of_model = call_model(model, replace(request, messages=messages, tools=[*request.tools, *own]))
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
                result, took = await use_tool(tools, call)
                yield ToolReturned(call.id, call.name, result.text, took, result.is_error)
                results.append((call, result))
        yield Round(completion, tuple(results))
        if not results:
            return
        messages += _round_messages(completion, results)


async def call_model(
    model: ChatModel, request: ChatRequest
) -> AsyncGenerator[Text | CallPiece | Restarted | Completion]:
    """Yields the pieces of one call, at last the completion; tool calls that came whole at the end are pieces too."""
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


async def use_tool(tools: Tools, call: ToolCall) -> tuple[ToolResult, int]:
    """Runs a tool of the agent; returns its result and how long it took in ms."""
    started = time.perf_counter()
    is_known = any(schema["function"]["name"] == call.name for schema in tools.schemas)
    with observed.tool(call.name, call.id, known=is_known) as failed:
        result = await tools.run(call)
        if result.is_error:
            failed(observed.FAILED)
    return result, round((time.perf_counter() - started) * 1000)


def check_not_empty(completion: Completion) -> None:
    """Raises EmptyAnswer, ModelModerated for an answer without text and calls."""
    if completion.text.strip() or completion.tool_calls:
        return
    if completion.finish_reason == "content_filter":
        raise ModelModerated(f"The moderation of {completion.model} withheld the answer.")
    reason = completion.finish_reason
    raise EmptyAnswer(f"The answer of {completion.model} was empty ({reason}).", completion.usage)


def _round_messages(completion: Completion, results: Sequence[tuple[ToolCall, ToolResult]]) -> list[dict[str, Any]]:
    """Returns the messages of a round, with which the model is called again.

    Arguments that are not JSON are replaced: models produce them, and some servers refuse them in the history.
    """
    calls = []
    for call in completion.tool_calls:
        try:
            json.loads(arguments := call.arguments)
        except ValueError:
            arguments = "{}"
        calls.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    asked = {"role": "assistant", "content": completion.text or None, "tool_calls": calls}
    return [asked, *({"role": "tool", "tool_call_id": call.id, "content": result.text} for call, result in results)]
