"""The WebSocket chat: one socket per topic, which is a conversation. It takes questions and sends answers in pieces.

In: `{"message": "…"}`, with a `request_id`, so that repeated messages ask only once, and an `agent` to choose who
answers. Out: `{"type", "data"}`.
"""

from contextlib import ExitStack, aclosing, suppress
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python
from starlette.status import WS_1008_POLICY_VIOLATION
from uuid_utils.compat import uuid7

from turnlog.agent.access.access import Access
from turnlog.agent.access.identity import Unauthenticated
from turnlog.agent.answering.asking import (
    AgentSwitched,
    Answered,
    AnswerPiece,
    NoAnswer,
    PhaseChanged,
    PlanShown,
    QuestionStored,
    Restarted,
    Solved,
    Text,
    ToolReturned,
    ToolUsed,
)
from turnlog.agent.answering.fallback import fallback_of
from turnlog.agent.answering.request import answer_id
from turnlog.agent.conversations.transcript import transcript, transcript_in_parts
from turnlog.agent.models.pricing import load_prices
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api.dialects.ai_agent_admin import AGENT_TYPE
from turnlog.consumers.api.principal import Place, Principal, use_zone
from turnlog.consumers.api.problems import language_of, problem_of, retry_after
from turnlog.consumers.api.streams import Running, Streams, one_of_few
from turnlog.events.contracts import UsageMetered
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.texts import valid_json
from turnlog.projectors.models.conversation.message import Message

router = APIRouter()
TICKET = "turnlog.ticket"
_REQUESTS = UUID("0193b5a2-6d5e-7c1f-9a43-5f0c8e2b7d12")
_ALL = 2**62
Type = Literal[
    "streaming_start",
    "streaming_chunk",
    "streaming_end",
    "tool_call_request",
    "tool_call_response",
    "phase_change",
    "plan_content",
    "agent_switch",
    "run",
    "message_saved",
    "error",
]


class SentQuestion(BaseModel):
    message: str = Field(min_length=1, max_length=1_000_000)
    request_id: str | None = Field(None, min_length=1, max_length=200)
    agent: str | None = Field(None, pattern=AGENT_TYPE)


@router.websocket("/xyzen/ws/v1/chat/sessions/{session_id}/topics/{topic_id}")
async def chat(
    socket: WebSocket, session_id: str, topic_id: str, after: Annotated[int | None, Query(ge=0, le=_ALL)] = None
) -> None:
    """Serves one socket. session_id groups topics and has no effect here. after: first sends the turns after this
    sequence, and then each running answer from its beginning. A client without access to the topic is
    refused before the socket opens."""
    with ExitStack() as counted:
        try:
            caller = await _caller(socket)
            counted.enter_context(one_of_few(socket.app, caller))
            place = await caller.may_begin(topic_id, "member")
        except TurnlogError as error:
            return await socket.send_denial_response(problem_of(error))
        await socket.accept(TICKET if TICKET in socket.scope["subprotocols"] else None)
        talk = _Talk(socket, caller, topic_id, place)
        with suppress(WebSocketDisconnect):  # the answer is made nevertheless
            if after is not None:
                await talk.replay(after)
            async for text in socket.iter_text():
                await talk.answer(text)


async def _caller(socket: WebSocket) -> Principal:
    """Returns the caller, identified by the token in the query or by a ticket after TICKET among the subprotocols,
    which are not logged.

    Raises Unauthenticated, TokenExpired, Forbidden, IssuerUnavailable, LogUnavailable, and InvalidEvent for an unknown
    time zone.
    """
    system: Runtime = socket.app.state.runtime
    access, offered = system.cached(Access), socket.scope["subprotocols"]
    if offered[:1] == [TICKET] and len(offered) == 2:
        identity = await access.redeem(offered[1])
    elif token := socket.query_params.get("token"):
        identity = await access.identify(token)
    else:
        raise Unauthenticated(f"send ?token=…, or the subprotocols {TICKET} and a ticket of POST /api/tickets")
    identity.require("ask")
    use_zone(identity, socket.headers.get("x-turnlog-timezone"))
    return Principal(identity, system.for_tenant(identity.tenant), system)


class _Talk:
    """An open socket."""

    def __init__(self, socket: WebSocket, caller: Principal, thread: str, place: Place) -> None:
        self._socket, self._caller, self._thread, self._place = socket, caller, thread, place
        self._streams: Streams = socket.app.state.streams

    async def replay(self, after: int) -> None:
        with suppress(NotFound):  # the topic has no turns yet
            async for part in transcript_in_parts(*self._place, after):
                for turn in part:
                    await self._saved(turn, content=turn.content)
        for seq, running in self._streams.under_way(*self._place[1:]):
            await self._relay(seq, running, None)

    async def answer(self, text: str) -> None:
        try:
            question = SentQuestion.model_validate_json(valid_json(text.encode()))
        except ValidationError as error:
            return await self._send("error", code="invalid-request", message=error.errors()[0]["msg"])
        try:
            await self._caller.check()
            agent = question.agent and question.agent.lower()
            turn_id = self._turn_id(question.request_id)
            asked, running = await self._streams.ask(self._caller, self._thread, question.message, None, turn_id, agent)
        except Unauthenticated as error:
            await self._error(error)
            await self._socket.close(WS_1008_POLICY_VIOLATION)
            raise WebSocketDisconnect(WS_1008_POLICY_VIOLATION) from error
        except TurnlogError as error:
            return await self._error(error)
        self._place = (*self._place[:2], asked.thread)
        for turn in (await transcript(*self._place, limit=1, before_seq=asked.seq, newest=True)).turns:
            await self._saved(turn)
        await self._relay(asked.seq, running, question.request_id)

    def _turn_id(self, request_id: str | None) -> UUID:
        if request_id is None:
            return uuid7()
        return uuid5(_REQUESTS, "\0".join((self._caller.tenant, self._caller.user, self._thread, request_id)))

    async def _relay(self, seq: int, running: Running[AnswerPiece], request_id: str | None) -> None:
        """Sends all pieces of one answer."""
        stream, index = running.id, 0
        try:
            async with aclosing(running.read()) as pieces:
                async for number, piece in pieces:
                    match piece:
                        case QuestionStored() | Restarted():  # a restart discards the text so far
                            stream, index = f"{running.id}-{number}", 0
                            about = {"thread": self._thread, "request_id": request_id}
                            await self._send("streaming_start", stream_id=stream, **about)
                        case Text(text=text):
                            await self._send("streaming_chunk", stream_id=stream, index=index, text=text)
                            index += 1
                        case ToolUsed(id=call, name=name, arguments=arguments):
                            about = {"call_id": call, "name": name, "arguments": arguments}
                            await self._send("tool_call_request", stream_id=stream, **about)
                        case ToolReturned(id=call):
                            result = {name: value for name, value in asdict(piece).items() if name != "id"}
                            await self._send("tool_call_response", stream_id=stream, call_id=call, **result)
                        case PhaseChanged():
                            await self._send("phase_change", stream_id=stream, agent=piece.agent, phase=piece.phase)
                        case PlanShown():
                            await self._send("plan_content", stream_id=stream, agent=piece.agent, content=piece.thought)
                        case AgentSwitched():
                            about = {"from": piece.agent, "to": piece.to, "task": piece.task}
                            await self._send("agent_switch", stream_id=stream, **about)
                        case Solved():
                            about = {name: value for name, value in asdict(piece).items() if name != "message"}
                            await self._send("run", stream_id=stream, **about)
                        case Answered():
                            await self._end(stream, seq, piece)
        except TurnlogError as error:
            await self._error(error)

    async def _end(self, stream: str, seq: int, answered: Answered) -> None:
        request = answer_id(answered.question_id, "request")
        made = await transcript(*self._place, limit=_ALL, after_seq=seq)
        for turn in made.turns:
            if turn.seq <= answered.seq:
                await self._saved(turn)
        log, (_, tenant, thread) = self._caller.system.log, self._place
        reason = answered.finish_reason
        usage, prices = (
            {"tokens_in": 0, "tokens_out": 0, "cost_usd": 0.0},
            load_prices(self._caller.system.settings.prices),
        )
        is_priced = True
        async for record in log.read_thread(tenant, thread, answered.seq, types=("usage_metered",)):
            if record.event.causation == request and isinstance(record.event.data, UsageMetered):
                reason = reason or record.event.data.error  # the last progress message may have been lost
                for name in usage:
                    usage[name] += getattr(record.event.data, name)
                is_priced = is_priced and prices.price_of(record.event.data.model) is not None
        receipt = answer_id(request, "receipt")
        about = {"finish_reason": reason or "stop", "usage": {**usage, "price_known": is_priced}, "receipt_id": receipt}
        await self._send("streaming_end", stream_id=stream, **about, suggestions=answered.suggestions)

    async def _saved(self, turn: Message, **more: Any) -> None:
        await self._send("message_saved", event_id=turn.event_id, seq=turn.seq, role=turn.role, **more)

    async def _error(self, error: TurnlogError) -> None:
        wait = retry_after(error)
        about: dict[str, Any] = {} if wait is None else {"retry_after": max(1, round(wait))}
        if isinstance(error, NoAnswer):
            said = fallback_of(error, language_of(self._socket))
            about = {"retry_after": said.retry_after_s} if said.should_retry and said.retry_after_s else {}
            about |= {"category": said.category, "text": said.message, "should_retry": said.should_retry}
        await self._send("error", code=error.code, message=str(error), **about)

    async def _send(self, type_: Type, **data: Any) -> None:
        await self._socket.send_json(to_jsonable_python({"type": type_, "data": data}))
