"""Makes an answer: a policy chooses each call of the model, and acts between the calls, until the answer is
complete."""

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnlog.agent.answering.pieces import PhaseChanged, Piece, Restarted, Round, Text, ToolReturned, ToolUsed
from turnlog.agent.answering.recall_tool import ToolResult
from turnlog.agent.models import observed
from turnlog.agent.models.errors import EmptyAnswer, ModelModerated
from turnlog.agent.models.protocol import CallPiece, ChatModel, ChatRequest, Completion
from turnlog.events.contracts import ToolCall

MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """The next call of the model. known: the answer if it is already known; then the model is not called. whole:
    request the complete answer, not a stream. phase: shown before the call."""

    request: ChatRequest
    known: Completion | None = None
    whole: bool = False
    phase: PhaseChanged | None = None


class Policy(Protocol):
    """A way to make an answer, such as the model alone, a loop with tools, or ReWOO."""

    async def ask(self) -> Ask | None:
        """Returns the next call of the model; None when the answer is complete."""
        ...

    def shows(self, piece: Text | CallPiece | Restarted) -> bool:
        """Takes note of a piece that the model has just produced; returns whether it belongs to the answer."""
        ...

    def take(self, made: Completion) -> AsyncGenerator[Piece]:
        """Carries out the model's requests, such as tool calls; yields their pieces, and a Round at the end unless the
        model gave nothing."""
        ...


async def run(model: ChatModel, policy: Policy) -> AsyncGenerator[Piece]:
    """Yields the pieces of the answer as they arrive, and a Round after each call of the model; a call that gave
    nothing is counted with the next Round. Raises ModelError."""
    while (asked := await policy.ask()) is not None:
        if asked.phase is not None:
            yield asked.phase
        made = asked.known
        if made is None and asked.whole:
            made = await model.complete(asked.request)
        elif made is None:
            async with aclosing(_streamed(model, asked.request)) as said:
                async for part in said:
                    if isinstance(part, Completion):
                        made = part
                    elif policy.shows(part):
                        yield part
        assert made is not None, "a stream ends with its completion"
        async with aclosing(policy.take(made)) as taken:
            async for piece in taken:
                yield piece


@dataclass(frozen=True, slots=True)
class Tools:
    """The agent's own tools. schemas: in OpenAI's format. run: runs a call; an error of the call is returned as its
    result."""

    schemas: Sequence[Mapping[str, Any]]
    run: Callable[[ToolCall], Awaitable[ToolResult]]


@dataclass(slots=True)
class ToolLoop:
    """Calls the model repeatedly, with the results of the tools that it requests, until it returns text.

    If the agent has no tools, there is one round; the sender of the request runs the request's own tools. The last of
    MAX_ROUNDS does not offer the agent's tools, so that the model must answer with text.
    """

    request: ChatRequest
    tools: Tools | None = None
    told: list[dict[str, Any]] = field(default_factory=list)
    rounds: int = 0
    is_answered: bool = False

    async def ask(self) -> Ask | None:
        if self.is_answered or self.rounds == MAX_ROUNDS:
            return None
        self.rounds += 1
        own = self.tools.schemas if self.tools and self.rounds < MAX_ROUNDS else ()
        messages = [*self.request.messages, *self.told]
        return Ask(replace(self.request, messages=messages, tools=[*self.request.tools, *own]))

    def shows(self, piece: Text | CallPiece | Restarted) -> bool:
        return True

    async def take(self, made: Completion) -> AsyncGenerator[Piece]:
        results = list[tuple[ToolCall, ToolResult]]()
        if self.tools:
            for call in made.tool_calls:
                yield ToolUsed(call.id, call.name, call.arguments)
                started = time.perf_counter()
                is_known = any(schema["function"]["name"] == call.name for schema in self.tools.schemas)
                with observed.tool(call.name, call.id, known=is_known) as failed:
                    result = await self.tools.run(call)
                    if result.is_error:
                        failed(observed.FAILED)
                took_ms = round((time.perf_counter() - started) * 1000)
                yield ToolReturned(call.id, call.name, result.text, took_ms, result.is_error)
                results.append((call, result))
        yield Round(made, tuple(results))
        self.is_answered = not results
        self.told += round_messages(made.text, results)


async def _streamed(
    model: ChatModel, request: ChatRequest
) -> AsyncGenerator[Text | CallPiece | Restarted | Completion]:
    """Yields the pieces of one call and finally the completion; tool calls that arrive only with the completion are
    yielded as pieces too."""
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


def round_messages(text: str, made: Sequence[tuple[ToolCall, ToolResult]]) -> list[dict[str, Any]]:
    """Returns the messages of a round for the next call of the model. text: the model's text beside its calls.

    Arguments that are not JSON are replaced: models produce them, and some servers refuse them in the history.
    """
    calls = []
    for call, _ in made:
        try:
            json.loads(arguments := call.arguments)
        except ValueError:
            arguments = "{}"
        calls.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    said = {"role": "assistant", "content": text or None, "tool_calls": calls}
    return [said, *({"role": "tool", "tool_call_id": call.id, "content": result.text} for call, result in made)]


def check_not_empty(completion: Completion) -> None:
    """Raises EmptyAnswer for an answer without text and tool calls, ModelModerated if a content filter withheld it."""
    if completion.text.strip() or completion.tool_calls:
        return
    if completion.finish_reason == "content_filter":
        raise ModelModerated(f"The moderation of {completion.model} withheld the answer.")
    reason = completion.finish_reason
    raise EmptyAnswer(f"The answer of {completion.model} was empty ({reason}).", completion.usage)
