"""Turns of a conversation: append, read, and the context that a model should see."""

import hmac
from dataclasses import fields, replace
from typing import Annotated, Any
from uuid import UUID, uuid5

from fastapi import APIRouter, Header, Query, Response
from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter

from turnlog.agent.access.access import Access
from turnlog.agent.answering import turns
from turnlog.agent.answering.context import AnswerBasis, SignedBasis, context_as_of, context_of
from turnlog.agent.answering.receipts import GivenReceipts
from turnlog.agent.answering.turns import NewTurn, ShownTurn, WrongReceipt, shown
from turnlog.agent.context import Context, Remarks, Tier, WindowShares, shares_of
from turnlog.agent.context.receipt import REASONS_ZH
from turnlog.agent.conversations.ownership import append_as_owner
from turnlog.agent.conversations.threads import thread_version
from turnlog.agent.conversations.transcript import transcript
from turnlog.consumers.api.bodies import JsonObject, RequestBody, Tokens
from turnlog.consumers.api.pages import Cursor, Limit, Page, cursor_of, place_of
from turnlog.consumers.api.principal import Principal, Reader, WriteId, Writer
from turnlog.consumers.api.problems import Problem, Refused, reader_language
from turnlog.consumers.api.routes.threads import VERSIONED, ThreadId, tag_of
from turnlog.events.contracts import ParticipantRole, TurnOrigin, UsageMetered
from turnlog.events.errors import WrongExpectedVersion
from turnlog.events.publish import Appended

router = APIRouter(prefix="/api/threads/{thread}", tags=["turns"])
_BASIS, _SIGNED = TypeAdapter(AnswerBasis), TypeAdapter(SignedBasis)
VERSIONED_APPEND: dict[int | str, dict[str, Any]] = {
    201: VERSIONED[200],
    412: {"model": Problem, "description": "The conversation has another version, given in the ETag."} | VERSIONED[200],
}
IfMatch = Annotated[
    str | None,
    Header(pattern=r'^"\d{1,18}"$', description="The ETag of the conversation as you know it; 412 if it has changed."),
]


class Turn(RequestBody):
    """A turn to append. content: text, or blocks as OpenAI, Anthropic or turnlog write them; tool_calls as OpenAI or
    turnlog do.

    origin: whose words a user's turn contains; if it is not given, turnlog decides from name and text.
    """

    role: str
    content: str | list[JsonObject] | None = None
    name: str | None = None
    tool_calls: list[JsonObject] = Field([])
    tool_call_id: str | None = None
    agent: str | None = None
    model: str | None = None
    tokens_in: Tokens | None = None
    tokens_out: Tokens | None = None
    latency_ms: float | None = Field(None, ge=0)
    source_id: str | None = None
    origin: TurnOrigin | None = None
    time: AwareDatetime | None = None

    def stored_as(self, event_id: UUID) -> NewTurn:
        return NewTurn(**dict(self), id=event_id)


class Turns(RequestBody):
    """Turns to append. expected: the last sequence of the conversation as you know it, 0 for a new one; 409 if it
    differs. The header If-Match expresses the same in HTTP's way, and takes precedence.

    receipt: the receipt of the context that the turns answer, as its id or as the whole object from the context's
    route. It is stored together with the turns, as is the query, before them, if the conversation lacks it. usage: of
    the model that wrote the turns.
    """

    turns: list[Turn] = Field(min_length=1, max_length=500)
    expected: int | None = Field(None, ge=0)
    receipt: SignedBasis | UUID | None = None
    usage: UsageMetered | None = None


@router.post("/turns", status_code=201, responses=VERSIONED_APPEND)
async def append_turns(
    thread: ThreadId, body: Turns, caller: Writer, write_id: WriteId, response: Response, if_match: IfMatch = None
) -> list[Appended]:
    """Appends turns in order. They are on disk when this responds, and every later read sees them. In another user's
    conversation, a member appends only turns of the role `user`."""
    receipt = body.receipt
    if isinstance(receipt, UUID):
        kept = caller.system.cached(GivenReceipts)
        receipt = _SIGNED.validate_json(await kept.find(caller.tenant, caller.user, receipt))
    if receipt is not None:
        _check_receipt(receipt, caller)
    made = [turn.stored_as(uuid5(write_id, str(at))) for at, turn in enumerate(body.turns)]
    expected = body.expected if if_match is None else version_of(if_match)

    least: ParticipantRole = "member" if all(turn.role == "user" for turn in made) else "owner"

    async def append(thread: str, version: int | None) -> turns.Added:
        about: dict[str, Any] = {"receipt": receipt, "usage": body.usage}
        about["expected"] = version if expected is None else expected
        return await turns.add_turns(caller.runtime, caller.tenant, thread, made, user=caller.user, **about)

    try:
        added = await append_as_owner(caller.runtime, caller.tenant, thread, caller.user, append, least=least)
    except WrongExpectedVersion as error:
        if if_match is None:
            raise
        now = await thread_version(*await caller.may_begin(thread, "member"))
        raise Refused(412, error.code, str(error), {"ETag": tag_of(now)}) from error
    response.headers["ETag"] = tag_of(added.version)
    return added.turns


@router.get("/turns", responses=VERSIONED)
async def list_turns(
    thread: ThreadId,
    caller: Reader,
    response: Response,
    limit: Limit = 100,
    cursor: Cursor = None,
    newest: Annotated[
        bool, Query(description="Pages from the newest turns to the oldest; each page is in the order of time.")
    ] = False,
    after_seq: Annotated[int, Query(ge=0, description="Only turns after this sequence.")] = 0,
    before_seq: Annotated[int | None, Query(ge=0, description="Only turns before this sequence.")] = None,
) -> Page[ShownTurn]:
    """Returns the transcript. The ETag is the conversation's version, for an append that depends on what was read."""
    place, begin = await caller.owns(thread, "reader"), place_of(cursor, int)
    between: dict[str, Any] = {"after_seq": after_seq, "before_seq": before_seq}
    if begin is not None:
        between["before_seq" if newest else "after_seq"] = begin[0]
    page = await transcript(*place, limit=limit, newest=newest, **between)
    response.headers["ETag"] = tag_of(page.version)
    edge = page.turns[0 if newest else -1].seq if page.more else 0
    return Page(items=[shown(turn) for turn in page.turns], next=cursor_of(edge) if page.more else None)


class ContextRequest(RequestBody):
    """The options of a context. query: the user's new message. tokens: maximum tokens of all messages. window: instead
    of tokens, the model's window, part of which is kept for the answer. hybrid: if not all turns fit, prefer those that
    are relevant to the query."""

    query: str | None = Field(None, max_length=200_000)
    tokens: int | None = Field(None, ge=64, le=10_000_000)
    window: int | None = Field(None, ge=64, le=100_000_000)
    hybrid: bool | None = None
    model: str | None = Field(None, max_length=200)
    system_prompt: str | None = None
    tools: list[JsonObject] = Field([])


class ContextMade(BaseModel):
    """A context for a model. messages: for the OpenAI chat API, system prompt first. budget: tokens for the tiers. seq:
    the sequence of the log up to which it was read. receipt: send its id with the answer's turn, or all of it if the id
    is null or no longer known; null for a past moment. degraded: why older turns were searched without vectors. shares:
    of the window. remarks: turns that were left out or altered, by reason, in the language of Accept-Language. matches:
    whether the context equals the receipt of the answer; null if there is none."""

    messages: list[dict[str, Any]]
    tiers: list[Tier]
    budget: int
    seq: int
    receipt: SignedBasis | None = None
    degraded: str | None = None
    shares: WindowShares
    remarks: list[Remarks]
    matches: bool | None = None

    @classmethod
    def of(cls, made: Context, system_prompt: str | None, **more: Any) -> "ContextMade":
        shown: dict[str, Any] = {"messages": made.messages, "tiers": list(made.tiers), "budget": made.budget}
        remarks = list(made.receipt.remarks)
        if reader_language.get() == "zh":
            remarks = [replace(each, reason=REASONS_ZH.get(each.reason, each.reason)) for each in remarks]
        shown |= {"shares": shares_of(made, bool(system_prompt)), "remarks": remarks}
        return cls(**shown, seq=made.receipt.as_of_seq, **more)


@router.get("/context")
async def context(
    thread: ThreadId,
    caller: Reader,
    query: Annotated[str | None, Query(max_length=20_000, description="The user's new message.")] = None,
    tokens: Annotated[int | None, Query(ge=64, le=10_000_000, description="Maximum tokens of all messages.")] = None,
    as_of: Annotated[int | None, Query(ge=1, description="As it was at this sequence of the log.")] = None,
) -> ContextMade:
    """Returns the context that a model should see now, or would have seen at an earlier moment."""
    if as_of is None:
        return await make_context(thread, ContextRequest(query=query, tokens=tokens), caller)
    place = await caller.owns(thread)
    past = await context_as_of(*place, as_of, query=query, tokens=tokens)
    prompt = past.receipt.system_prompt if past.receipt else None
    settings = caller.runtime.settings
    return ContextMade.of(past.context, settings.system_prompt if prompt is None else prompt, matches=past.matches)


@router.post("/context")
async def make_context(thread: ThreadId, body: ContextRequest, caller: Reader) -> ContextMade:
    """Returns the context that a model should see now; the conversation does not change. A new conversation needs a
    query."""
    built = await context_of(*await caller.may_begin(thread, "reader"), user=caller.user, **dict(body))
    said = {field.name: getattr(built.receipt, field.name) for field in fields(AnswerBasis)}
    receipt = SignedBasis(**said, signature=_signature(built.receipt, caller))
    id_ = await caller.system.cached(GivenReceipts).keep(caller.tenant, caller.user, _SIGNED.dump_json(receipt))
    receipt = replace(receipt, id=id_)
    return ContextMade.of(built.context, built.receipt.system_prompt, receipt=receipt, degraded=built.degraded)


def _check_receipt(receipt: SignedBasis, caller: Principal) -> None:
    """Raises WrongReceipt for a receipt that is not valid for this append."""
    if not hmac.compare_digest(receipt.signature.encode(), _signature(receipt, caller).encode()):
        raise WrongReceipt(
            "this server did not issue that receipt; send back the one that came with the context, unchanged"
        )
    if receipt.user != caller.user:
        raise WrongReceipt("the receipt belongs to another user's context; build a context with your own token")


def _signature(basis: AnswerBasis, caller: Principal) -> str:
    return caller.system.cached(Access).signature_of(_BASIS.dump_json(basis))


def version_of(tag: str) -> int:
    return int(tag.strip('"'))
