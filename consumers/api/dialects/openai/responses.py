"""POST /v1/responses, whole and as a stream of typed events."""

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import count
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from turnlog.agent.answering.completions import CompletionRequest, Reasoned, Text
from turnlog.agent.conversations.transcript_matching import History
from turnlog.agent.models.protocol import CUT_OFF, ENDED_HERE, CallPiece, ChatRequest, Completion
from turnlog.consumers.api.bodies import JsonObject
from turnlog.consumers.api.dialects.openai.begin import ByHeaders, ConversationHeaders, Started, own_fields, start
from turnlog.consumers.api.dialects.openai.errors import OpenAIRoute, Unusable
from turnlog.consumers.api.dialects.openai.response_items import (
    by_full_name,
    id_part,
    messages_of,
    place_in,
    tools_of,
)
from turnlog.consumers.api.principal import Asker, WriteId
from turnlog.consumers.api.streams import STREAM

router = APIRouter(prefix="/v1", tags=["openai"], route_class=OpenAIRoute)
Event = dict[str, Any]
_ECHOED = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "temperature", "tools")
_ECHOED_AS_GIVEN = {"parallel_tool_calls": True, "text": {"format": {"type": "text"}}, "tool_choice": "auto"}
_ECHOED_AS_GIVEN |= {"top_p": None, "truncation": "disabled", "reasoning": {"effort": None, "summary": None}}
# OpenAI has no other word for an answer that was cut off.
_CUT = {**dict.fromkeys((CUT_OFF, *ENDED_HERE), "max_output_tokens"), "content_filter": "content_filter"}


# For functions and custom tools: the type of the item for a call, and its field with the tool's input.
_CALLS = (("function_call", "arguments"), ("custom_tool_call", "input"))


class ResponsesBody(BaseModel):
    """The body of OpenAI's request. Further fields that models take are passed on; other fields are ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: JsonObject
    input: str | list[JsonObject]
    instructions: str | None = None
    model: str | None = Field(None, max_length=200)
    stream: bool = False
    store: bool | None = None
    previous_response_id: str | None = Field(None, max_length=1_000)
    conversation: str | dict[str, Any] | None = None
    tools: list[JsonObject] = []
    temperature: float | None = None
    max_output_tokens: int | None = None
    metadata: JsonObject | None = None

    def wanted(self, headers: ConversationHeaders) -> CompletionRequest:
        """Returns the requested completion. Raises Unusable, NotFound."""
        if self.previous_response_id and self.conversation:
            raise Unusable("conversation", "give either previous_response_id or conversation")
        items: list[dict[str, Any]] = (
            [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        )
        at = max((at for at, item in enumerate(items) if item.get("type") == "item_reference"), default=None)
        previous = self.previous_response_id if at is None else str(items[at].get("id"))
        messages = messages_of(items if at is None else items[at + 1 :])
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        conversation = self.conversation.get("id") if isinstance(self.conversation, dict) else self.conversation
        if previous:
            earlier, behind = place_in(previous)
            return CompletionRequest(messages, self._chat(), earlier, behind=behind, memory=headers.mode(self.store))
        thread, whole = headers.choose(conversation, self.metadata)
        history: History = "all" if whole else "none" if conversation else "some"
        return CompletionRequest(messages, self._chat(), thread, history, memory=headers.mode(self.store))

    def _chat(self) -> ChatRequest:
        more = self.model_extra or {}
        names = ("top_p", "parallel_tool_calls")
        options = {name: more[name] for name in names if more.get(name) is not None}
        if effort := (more.get("reasoning") or {}).get("effort"):
            options["reasoning_effort"] = effort
        choice = more.get("tool_choice")
        if choice is not None:
            named = isinstance(choice, dict) and choice.get("type") == "function"
            options["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if named else choice
        form = dict((more.get("text") or {}).get("format") or {"type": "text"})
        if form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
        if form.get("type") != "text":
            options["response_format"] = form
        return ChatRequest(
            (),
            tools_of(self.tools),
            model=self.model,
            temperature=self.temperature,
            max_tokens=self.max_output_tokens,
            options=options,
        )


@router.post("/responses", response_class=JSONResponse, responses=STREAM)
async def responses(
    body: ResponsesBody, caller: Asker, headers: ByHeaders, request: Request, write_id: WriteId
) -> Response:
    """Makes a response with the conversation's context and the person's memories, and stores it in the conversation."""
    started = await start(request, caller, headers, body.wanted(headers), write_id)
    answer = _Answer(started, body, caller.runtime.models.chat.model)
    if body.stream:
        return started.streamed(answer.lines(), answer.failed)
    last = [event async for event in answer.events()][-1]
    return JSONResponse(last["response"], headers=started.headers)


class _Answer:
    """A response in progress. output: the items so far, in the order in which they began."""

    def __init__(self, started: Started, body: ResponsesBody, model: str) -> None:
        self._started, self._id = started, id_part(started.ids.id, started.ids.thread)
        self._base: dict[str, Any] = {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": int(time.time()),
            "error": None,
            "incomplete_details": None,
            "model": body.model or model,
            **echoed_fields(body.model_dump()),
            "store": started.ids.receipt is not None,
            "conversation": {"id": started.ids.thread} if body.conversation else None,
        }
        self._tools = dict(by_full_name(body.tools))
        self._output: list[dict[str, Any]] = []
        self._numbers = count()
        self._calls: dict[int, int] = {}  # index among the tool calls → index in the output

    async def lines(self) -> AsyncGenerator[str]:
        async with aclosing(self.events()) as events:
            async for event in events:
                yield self._line(event)

    def failed(self, body: str) -> str:
        said = json.loads(body)["error"]
        response = self._response("failed", error={"code": said["code"], "message": said["message"]})
        return self._line({"type": "response.failed", "response": response})

    def _line(self, event: Event) -> str:
        numbered = {**event, "sequence_number": next(self._numbers)}
        return f"event: {event['type']}\ndata: {json.dumps(numbered)}\n\n"

    async def events(self) -> AsyncGenerator[Event]:
        """Yields the events of the response. Raises ModelError, NoAnswer."""
        yield {"type": "response.created", "response": self._response("in_progress")}
        yield {"type": "response.in_progress", "response": self._response("in_progress")}
        async with aclosing(self._started.pieces()) as pieces:
            async for piece in pieces:
                match piece:
                    case Reasoned(text=step):
                        for event in self._step(step):
                            yield event
                    case Text(text=text):
                        for event in (*self._steps_end(), *self._text(text)):
                            yield event
                    case CallPiece():
                        for event in self._call(piece):
                            yield event
                    case Completion():
                        for event in (*self._closed(), self._ended(piece)):
                            yield event

    def _step(self, text: str) -> list[Event]:
        """Returns the events of one complete part of the reasoning summary."""
        begun: list[Event] = []
        if not self._output or self._output[-1]["type"] != "reasoning":
            at = len(self._output)
            item = {"type": "reasoning", "id": f"rs_{at}_{self._id}", "status": "in_progress"}
            self._output.append({**item, "summary": []})
            begun = [{"type": "response.output_item.added", "output_index": at, "item": {**item, "summary": []}}]
        at = len(self._output) - 1
        summary = self._output[at]["summary"]
        position = {"item_id": self._output[at]["id"], "output_index": at, "summary_index": len(summary)}
        part = {"type": "summary_text", "text": text}
        summary.append(part)
        return [
            *begun,
            {"type": "response.reasoning_summary_part.added", **position, "part": {**part, "text": ""}},
            {"type": "response.reasoning_summary_text.delta", **position, "delta": text},
            {"type": "response.reasoning_summary_text.done", **position, "text": text},
            {"type": "response.reasoning_summary_part.done", **position, "part": part},
        ]

    def _steps_end(self) -> list[Event]:
        """Returns the events that end open reasoning summaries."""
        events: list[Event] = []
        for at, item in enumerate(self._output):
            if item["type"] == "reasoning" and item["status"] != "completed":
                item["status"] = "completed"
                events.append({"type": "response.output_item.done", "output_index": at, "item": item})
        return events

    def _text(self, text: str) -> list[Event]:
        at = next((at for at, item in enumerate(self._output) if item["type"] == "message"), None)
        begun: list[Event] = []
        if at is None:
            at = len(self._output)
            item = {"type": "message", "id": f"msg_{self._id}", "status": "in_progress", "role": "assistant"}
            self._output.append({**item, "content": []})
            begun = [
                {"type": "response.output_item.added", "output_index": at, "item": dict(self._output[at])},
                {"type": "response.content_part.added", **self._part_at(at), "part": _text_part("")},
            ]
            self._output[at]["content"] = [_text_part("")]
        self._output[at]["content"][0]["text"] += text
        return [*begun, {"type": "response.output_text.delta", **self._part_at(at), "delta": text, "logprobs": []}]

    def _call(self, piece: CallPiece) -> list[Event]:
        begun: list[Event] = []
        if piece.index not in self._calls:
            at = self._calls[piece.index] = len(self._output)
            tool = self._tools.get(piece.name, {"name": piece.name})
            kind, text = _CALLS[tool.get("type") == "custom"]
            item = {"type": kind, "id": f"fc_{piece.index}_{self._id}", "status": "in_progress"}
            item |= {field: tool[field] for field in ("name", "namespace") if field in tool}
            self._output.append({**item, "call_id": piece.id, text: ""})
            begun = [{"type": "response.output_item.added", "output_index": at, "item": dict(self._output[at])}]
        at = self._calls[piece.index]
        kind, text = _CALLS["input" in self._output[at]]
        self._output[at][text] += piece.arguments
        if not piece.arguments:
            return begun
        position = {"item_id": self._output[at]["id"], "output_index": at}
        return [*begun, {"type": f"response.{kind}_{text}.delta", **position, "delta": piece.arguments}]

    def _closed(self) -> list[Event]:
        events = self._steps_end()
        for at, item in enumerate(self._output):
            if item["type"] == "reasoning":
                continue
            item["status"] = "completed"
            if item["type"] == "message":
                part = item["content"][0]
                text = {"text": part["text"], "logprobs": []}
                events.append({"type": "response.output_text.done", **self._part_at(at), **text})
                events.append({"type": "response.content_part.done", **self._part_at(at), "part": part})
            else:
                kind, field = _CALLS["input" in item]
                item[field] = item[field] or ("" if field == "input" else "{}")
                done = {"item_id": item["id"], "output_index": at, "name": item["name"], field: item[field]}
                events.append({"type": f"response.{kind}_{field}.done", **done})
            events.append({"type": "response.output_item.done", "output_index": at, "item": item})
        return events

    def _ended(self, made: Completion) -> Event:
        cut = _CUT.get(made.finish_reason or "")
        status = "incomplete" if cut else "completed"
        usage = usage_of(made.tokens_in, made.tokens_out)
        more = {"model": made.model, "usage": usage, "incomplete_details": {"reason": cut} if cut else None}
        more |= own_fields(made)
        return {"type": f"response.{status}", "response": self._response(status, **more)}

    def _part_at(self, at: int) -> dict[str, Any]:
        return {"item_id": self._output[at]["id"], "output_index": at, "content_index": 0}

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        return {**self._base, "status": status, "output": list(self._output), "usage": None, **more}


def echoed_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a response that repeat those of the request, with defaults for missing ones."""
    own = {name: request.get(name, [] if name == "tools" else None) for name in _ECHOED}
    return own | {name: request.get(name) or default for name, default in _ECHOED_AS_GIVEN.items()}


def usage_of(tokens_in: int, tokens_out: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens_in,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens_in + tokens_out,
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
