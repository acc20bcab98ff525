"""POST /v1/chat/completions, whole and streamed."""

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from turnlog.agent.answering.completions import CompletionPiece, CompletionRequest, Reasoned, Text
from turnlog.agent.context.wire import custom_tools, wire_call
from turnlog.agent.models.protocol import CUT_OFF, ENDED_HERE, CallPiece, ChatRequest, Completion
from turnlog.consumers.api.bodies import JsonObject
from turnlog.consumers.api.dialects.openai.begin import (
    MODEL_FIELDS,
    ByHeaders,
    ConversationHeaders,
    Started,
    own_fields,
    start,
)
from turnlog.consumers.api.dialects.openai.errors import OpenAIRoute, Unusable
from turnlog.consumers.api.principal import Asker, WriteId
from turnlog.consumers.api.streams import STREAM

router = APIRouter(prefix="/v1", tags=["openai"], route_class=OpenAIRoute)
_REFUSED = {"functions": "tools", "function_call": "tool_choice"}


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatBody(BaseModel):
    """The body of OpenAI's request. Further fields that models take are passed on; other fields are ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: JsonObject
    messages: list[JsonObject] = Field(min_length=1, max_length=10_000)
    model: str | None = Field(None, max_length=200)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[JsonObject] = []
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    store: bool | None = None
    metadata: JsonObject | None = None

    def wanted(self, headers: ConversationHeaders) -> CompletionRequest:
        """Returns the requested completion. Raises Unusable."""
        more = self.model_extra or {}
        if self.n not in (None, 1):
            raise Unusable("n", "n must be 1: a conversation continues with one answer")
        for old, new in _REFUSED.items():
            if more.get(old) is not None:
                raise Unusable(old, f"{old} belongs to an older API; use {new}")
        if "audio" in (more.get("modalities") or ()):
            raise Unusable("modalities", "answers are text; there is no audio")
        chat = ChatRequest(
            (),
            self.tools,
            model=self.model,
            temperature=self.temperature,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            options={name: more[name] for name in MODEL_FIELDS if more.get(name) is not None},
        )
        thread, whole = headers.choose(None, self.metadata)
        return CompletionRequest(
            self.messages, chat, thread, "all" if whole else "some", memory=headers.mode(self.store)
        )


@router.post("/chat/completions", response_class=JSONResponse, responses=STREAM)
async def completions(
    body: ChatBody, caller: Asker, headers: ByHeaders, request: Request, write_id: WriteId
) -> Response:
    """Makes a completion with the conversation's context and the person's memories, and stores it in the
    conversation.
    """
    started = await start(request, caller, headers, body.wanted(headers), write_id)
    chunks = _Chunks(started, body.model or caller.runtime.models.chat.model, body.tools)
    if not body.stream:
        return JSONResponse(await chunks.whole(), headers=started.headers)
    usage = body.stream_options is not None and body.stream_options.include_usage
    return started.streamed(chunks.lines(usage), lambda error: f"data: {error}\n\n")


class _Chunks:
    def __init__(self, started: Started, model: str, tools: Sequence[Mapping[str, Any]]) -> None:
        self._started, self._custom = started, custom_tools(tools)
        self._custom_calls: set[int] = set()  # indexes of calls of custom tools
        self._base = {"id": f"chatcmpl-{started.ids.id.hex}", "created": int(time.time()), "model": model}

    async def whole(self) -> dict[str, Any]:
        made = await self._started.whole()
        calls = [wire_call(call.id, call.name, call.arguments, self._custom) for call in made.tool_calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": made.text or (None if calls else ""),
            "refusal": None,
        }
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(made)}
        base = {**self._base, "object": "chat.completion", "model": made.model}
        return {**base, "choices": [choice], "usage": _usage(made), **own_fields(made)}

    async def lines(self, usage: bool) -> AsyncGenerator[str]:
        yield self._chunk({"role": "assistant", "content": ""}, usage=usage)
        async with aclosing(self._started.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, Reasoned):  # chat completions have no field for reasoning
                    continue
                yield self._chunk_of(piece, usage)
                if usage and isinstance(piece, Completion):
                    yield _event({**self._base, **_CHUNK, "choices": [], "usage": _usage(piece)})
        yield "data: [DONE]\n\n"

    def _chunk_of(self, piece: CompletionPiece, usage: bool) -> str:
        match piece:
            case Text(text=text):
                return self._chunk({"content": text}, usage=usage)
            case CallPiece():
                return self._chunk({"tool_calls": [self._call_delta(piece)]}, usage=usage)
            case Completion():
                return self._chunk({}, _reason(piece), usage, own_fields(piece))
        raise AssertionError("an answer begins once")

    def _call_delta(self, piece: CallPiece) -> dict[str, Any]:
        if piece.name in self._custom:
            self._custom_calls.add(piece.index)
        if piece.id:
            return {"index": piece.index, **wire_call(piece.id, piece.name, piece.arguments, self._custom)}
        if piece.index in self._custom_calls:
            return {"index": piece.index, "custom": {"input": piece.arguments}}
        return {"index": piece.index, "function": {"arguments": piece.arguments}}

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, usage: bool = False, own: dict[str, Any] | None = None
    ) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _event(
            {**self._base, **_CHUNK, "choices": [choice], **({"usage": None} if usage else {}), **(own or {})}
        )


_CHUNK = {"object": "chat.completion.chunk"}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _reason(made: Completion) -> str:
    reason = made.finish_reason or ("tool_calls" if made.tool_calls else "stop")
    return CUT_OFF if reason in ENDED_HERE else reason  # OpenAI has no other word for an answer that was cut off


def _usage(made: Completion) -> dict[str, int]:
    return {
        "prompt_tokens": made.tokens_in,
        "completion_tokens": made.tokens_out,
        "total_tokens": made.tokens_in + made.tokens_out,
    }
