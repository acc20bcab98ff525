"""The start of an answer for chat completions and responses: its conversation and its memory mode."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import Depends, Header, Request
from fastapi.responses import StreamingResponse
from pydantic import BeforeValidator

from turnlog.agent.answering.client_tasks import is_client_task
from turnlog.agent.answering.completions import (
    AnswerIds,
    CompletionPiece,
    CompletionRequest,
    MemoryMode,
    Person,
    complete,
    complete_once,
)
from turnlog.agent.models.protocol import Completion
from turnlog.consumers.api import idempotency
from turnlog.consumers.api.dialects.openai.agents import agent_of, complete_by_agent
from turnlog.consumers.api.dialects.openai.errors import error_body
from turnlog.consumers.api.principal import Principal
from turnlog.consumers.api.streams import LOST, RECORDED, Running, Streams
from turnlog.events.tasks import cancel

LOOK_AGAIN_S = 0.5
ThreadName = Annotated[str | None, Header(max_length=255)]
MODEL_FIELDS = (
    "top_p",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "response_format",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "verbosity",
)


@dataclass(frozen=True, slots=True)
class ConversationHeaders:
    """The headers that name the conversation, the memory mode and the client's own task."""

    thread: str | None
    chat: str | None
    others: str | None
    memory: MemoryMode | None
    task: str | None

    def choose(self, field: str | None, metadata: Mapping[str, Any] | None) -> tuple[str | None, bool]:
        """Returns (thread, whole): the conversation that the request names, and whether its client always sends the
        whole history.

        field: the conversation named in the body.
        """
        in_metadata = (metadata or {}).get("thread_id")
        named = self.thread or field or (in_metadata if isinstance(in_metadata, str) else None)
        return named or self.chat or self.others, named is None and self.chat is not None

    def mode(self, store: bool | None) -> MemoryMode:
        return self.memory or ("read" if store is False else "full")


def conversation_headers(
    x_turnlog_thread: ThreadName = None,
    x_openwebui_chat_id: ThreadName = None,
    x_openwebui_task: Annotated[
        str | None,
        Header(max_length=255, description="A task of the client itself, such as making a title; nothing is stored."),
    ] = None,
    x_conversation_id: ThreadName = None,
    x_sm_conversation_id: ThreadName = None,
    x_turnlog_memory: Annotated[
        MemoryMode | None,
        BeforeValidator(lambda mode: mode or None),
        Header(description="full; read (nothing is stored) or off (the model alone)."),
    ] = None,
) -> ConversationHeaders:
    others = x_conversation_id or x_sm_conversation_id
    chat = x_openwebui_chat_id or None
    return ConversationHeaders(
        x_turnlog_thread or None, chat, others or None, x_turnlog_memory, x_openwebui_task or None
    )


ByHeaders = Annotated[ConversationHeaders, Depends(conversation_headers)]


@dataclass(frozen=True, slots=True)
class Started:
    """An answer whose question is stored."""

    ids: AnswerIds
    running: Running[CompletionPiece]
    request: Request
    memory: MemoryMode

    @property
    def headers(self) -> dict[str, str]:
        about = {"X-Turnlog-Thread": self.ids.thread, "X-Turnlog-Receipt": self.ids.receipt}
        about |= {"X-Turnlog-Memory": self.memory}
        return {name: str(value) for name, value in about.items() if value is not None}

    async def pieces(self) -> AsyncGenerator[CompletionPiece]:
        """Yields the pieces of the answer, after the first piece, which has the ids. If the answer is not stored and
        its reader leaves, the request to the model's server is cancelled."""
        has_ended = False
        try:
            async with aclosing(self.running.read(1)) as pieces:
                async for _, piece in pieces:
                    has_ended = isinstance(piece, Completion)
                    yield piece
        finally:
            if self.ids.receipt is None and not has_ended:
                self.running.task.cancel()

    async def whole(self) -> Completion:
        """Returns the answer once it is complete and, if it is stored, recorded. Raises ModelError, NoAnswer."""
        leaving = None
        if self.ids.receipt is None:
            leaving = asyncio.create_task(cancel_when_left(self.request, self.running.task))
        try:
            async with aclosing(self.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Completion):
                        return piece
        finally:
            if leaving is not None:
                await cancel(leaving)
        raise AssertionError("the last piece is the whole answer")

    def streamed(self, lines: AsyncGenerator[str], failed: Callable[[str], str]) -> StreamingResponse:
        """Returns the lines as server-sent events. failed: makes the last line from an error body, if an error occurs
        after the response has begun.
        """

        async def sent() -> AsyncIterator[str]:
            try:
                async with aclosing(lines):
                    async for line in lines:
                        yield line
            except Exception as error:  # the response has begun, so the error is sent in the stream
                idempotency.failed(self.request)
                yield failed(error_body(error, self.request))

        return StreamingResponse(sent(), headers=self.headers, media_type="text/event-stream")


def own_fields(made: Completion) -> dict[str, Any]:
    """Returns the field that turnlog adds to a completion, to its last chunk or to a response."""
    return {"turnlog": {"suggestions": list(made.suggestions)}} if made.suggestions else {}


async def cancel_when_left(request: Request, work: asyncio.Task[Any]) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(LOOK_AGAIN_S)
    work.cancel()


async def start(
    request: Request, caller: Principal, headers: ConversationHeaders, wanted: CompletionRequest, id_: UUID
) -> Started:
    """Begins an answer with this id, and returns it once its question is stored.

    A stored question is answered even if the client disconnects; if its library retries the request, it gets that
    answer. A task of the client itself is answered but not stored, unless the request asks for it. Raises the errors
    that `complete` raises before it calls the model.
    """
    if wanted.memory == "full" and headers.memory is None and is_client_task(wanted.messages, headers.task):
        wanted = replace(wanted, memory="read", is_task=True)
    elif wanted.memory == "full" and headers.memory is None:
        wanted = replace(wanted, knows_prompts=True)
    agent = agent_of(caller.runtime, wanted.chat.model)
    if agent is not None and wanted.is_task:  # such as a title, which the model writes without the agent
        agent, wanted = None, replace(wanted, chat=replace(wanted.chat, model=None))
    person = Person(caller.tenant, caller.user, caller.identity.role)
    streams: Streams = request.app.state.streams
    digest = await _digest(request, caller) if wanted.memory == "full" else None
    tries = request.headers.get("x-stainless-retry-count")
    is_retry = tries not in (None, "0")
    first = streams.sent(digest) if digest is not None and is_retry else None
    if first is not None and first[1].error is None:
        running = first[1]
    else:
        id_ = first[0] if first else id_  # uses the id of the failed attempt, so that its question is not stored again
        wanted = replace(wanted, id=id_)
        if agent is not None:
            pieces = complete_by_agent(caller, wanted, agent)
        elif digest is not None and tries is not None:
            pieces = complete_once(caller.runtime, person, wanted, digest, is_retry)
        else:
            pieces = complete(caller.runtime, person, wanted)
        running = streams.run(pieces, LOST if agent is None else RECORDED, digest, id_)
    async with aclosing(running.read()) as numbered:
        _, first = await anext(numbered)
    return Started(cast(AnswerIds, first), running, request, wanted.memory)


async def _digest(request: Request, caller: Principal) -> bytes:
    """Returns a hash that is equal for a request and its retry. It covers the caller, the body and the headers that
    affect the answer."""
    named = (request.headers.get(name, "") for name in idempotency.HEADERS)
    who = "\0".join((caller.tenant, caller.user, request.url.path, *named))
    return sha256(who.encode() + b"\0" + await request.body()).digest()
