"""persist: what an answer took, its receipt and the memories it read go on the log, once. The turns are there already:
the checkpointer's are events."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from langchain_core.messages import AIMessage

from turnlog.agent.context import ContextReceipt, answer_receipt
from turnlog.agent.context.pin import Item
from turnlog.agent.context.receipt import remarks_by_reason
from turnlog.agent.context.turns import Remark
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.agent.threads.state import receipt_settings
from turnlog.consumers.langgraph.graph.request import Request, build_request, to_messages
from turnlog.consumers.langgraph.graph.state import ConversationState, Node, Update, unless_away
from turnlog.events.contracts import AnswerReceipt, Event, KnownOfUser, ReceiptTier, TurnSpans, UsageMetered, spans_of
from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.message import Message, thread_messages

SOURCE = "turnlog/graph"
Places = dict[int, Message]


class NoReceipt(TurnlogError):
    """The messages that the model was given cannot be named by turns of the log."""

    code = "no-receipt"


class Receipts:
    """The receipts of a graph's answers. model: the name of the chat model that requests are built for."""

    def __init__(self, log: Log, pool: Pool, settings: Settings, model: str) -> None:
        self._log, self._pool, self._settings, self._model = log, pool, settings, model

    async def record(self, state: ConversationState, answer: AIMessage) -> str:
        """Appends one receipt for each answer, however often it is called. Returns why there is none, or ''.

        answer: the state's last message.

        Raises LogUnavailable, LogFull, GapInLog.
        """
        made, why = await unless_away(self._made(state, answer), None)
        if made is not None:
            event, as_of_seq = made
            if event.id not in await self._log.stored_ids(event.tenant, event.thread, as_of_seq):
                await self._log.append(event)
        return why

    async def _made(self, state: ConversationState, answer: AIMessage) -> tuple[Event, int]:
        """The event, and the sequence that it is about. Raises NoReceipt, WindowTooSmall, NotProjectedInTime."""
        request = build_request(asked(state), self._settings, self._model)
        if request.context_hash != answer.response_metadata.get("context_hash"):
            raise NoReceipt("the settings, or the nodes before, are not those that the answer was made with")
        turns = await self._turns(state["conversation_id"])
        found = on_the_log(to_messages(state["messages"], state["conversation_id"]), turns)
        place = {turn.seq: at for at, turn in enumerate(turns)}
        data = receipt(self._settings, state, request, found, place)
        return _event("receipt", self._settings.tenant, state, answer, data, data.turn_id), data.as_of_seq

    async def _turns(self, thread: str) -> list[Message]:
        """All that the log has of the thread, oldest first."""
        tenant = self._settings.tenant
        head = await self._log.thread_head(tenant, thread, "turn_recorded")
        if not head:
            return []
        partition = await self._log.partition_of(tenant, thread, head)
        async with self._pool.connection() as conn:
            await wait_for(conn, ("messages",), partition, head)
            return await thread_messages(conn, tenant, thread)


def asked(state: ConversationState) -> ConversationState:
    """The state as it was before its last message, the answer."""
    before = state.copy()
    before["messages"] = state["messages"][:-1]
    return before


def on_the_log(messages: Sequence[Message], turns: Iterable[Message]) -> Places:
    """Place in the state → the turn with the same content; of several the newest that keeps the order, if one does."""
    alike = defaultdict[str, list[Message]](list)
    for turn in turns:
        alike[_words(turn)].append(turn)
    found: Places = {}
    later = 2**62
    for message in reversed(messages):
        same = alike.get(_words(message))
        if same:
            turn = next((one for one in reversed(same) if one.seq < later), same[-1])
            found[message.seq], later = turn, turn.seq
    return found


def receipt(
    settings: Settings, state: ConversationState, request: Request, found: Places, place: Mapping[int, int]
) -> AnswerReceipt:
    """found: as on_the_log() for all messages, the answer included. place: of every turn of the thread, by its
    sequence. Raises NoReceipt."""
    given = to_messages(asked(state)["messages"], state["conversation_id"])
    if not given or any(message.seq not in found for message in given):
        raise NoReceipt(
            "a message that the model was given is not a turn on the log; is the checkpointer a TurnlogSaver?"
        )
    question = next((message for message in reversed(given) if message.role == "user"), given[-1])
    answer = found.get(len(state["messages"]))
    data = answer_receipt(
        _by_turns(request, state, {one.seq: found[one.seq].seq for one in given}, place),
        request_id=found[question.seq].event_id,
        turn_id=found[question.seq].event_id,
        answer_ids=(answer.event_id,) if answer else (),
        system_prompt=settings.system_prompt,
        settings=receipt_settings(settings),
    )
    return data.model_copy(update={"notes": request.notes})


def _by_turns(
    request: Request, state: ConversationState, seq_of: Mapping[int, int], place: Mapping[int, int]
) -> ContextReceipt:
    """The context's own receipt with sequences of the log in place of places in the state."""
    context = request.context
    made, known = context.receipt, state.get("memory_known")
    summaries = [tier.summary_seq for tier in made.tiers if tier.summary_seq]

    def tier_of(tier: ReceiptTier, items: Sequence[Item]) -> ReceiptTier:
        seqs = () if tier.tier == "1" else (seq_of[item.seq] for item in items)
        return tier.model_copy(update={"turns": TurnSpans.of(seqs, place)})

    moved = [Remark(seq_of[remark.seq], remark.reason) for remark in (*context.dropped, *context.altered)]
    return replace(
        made,
        as_of_seq=max([*seq_of.values(), *summaries]),
        tiers=tuple(tier_of(tier, own.items) for tier, own in zip(made.tiers, context.tiers, strict=True)),
        dropped=TurnSpans.of((remark.seq for remark in moved[: len(context.dropped)]), place),
        remarks=remarks_by_reason(moved, place),
        state=spans_of(seq_of.values(), place),
        memories=tuple(state.get("memory_ids") or ()),
        known=KnownOfUser.model_validate(known) if known else None,
        context_hash=request.context_hash,
    )


def _words(turn: Message) -> str:
    return json.dumps([turn.role, turn.content, turn.name, turn.tool_calls, turn.tool_call_id], sort_keys=True)


def persist_node(log: Log, memories: Memories, receipts: Receipts, settings: Settings) -> Node:
    async def persist(state: ConversationState) -> Update:
        """Raises LogUnavailable, LogFull; the answer stays in the state and the run can be resumed."""
        answer = state["messages"][-1] if state["messages"] else None
        if not isinstance(answer, AIMessage) or answer.usage_metadata is None:
            return {}
        usage = usage_event(settings.tenant, state, answer)
        await log.append(usage)
        no_receipt = await receipts.record(state, answer)
        await _note_access(memories, settings, state, usage.id)
        return {"debug": state.get("debug", {}) | {"persist receipt": no_receipt}} if no_receipt else {}

    return persist


async def _note_access(memories: Memories, settings: Settings, state: ConversationState, answer: UUID) -> None:
    """Once for each answer, however often the node runs. Raises LogUnavailable, LogFull."""
    read = [UUID(one) for one in state.get("memory_ids") or ()]
    if read and state["user_id"]:
        await memories.accessed(settings.tenant, state["user_id"], read, cause=answer)


def usage_event(tenant: str, state: ConversationState, answer: AIMessage) -> Event:
    return _event("usage", tenant, state, answer, _metered(answer, answer.response_metadata))


def _event(
    part: str,
    tenant: str,
    state: ConversationState,
    answer: AIMessage,
    data: AnswerReceipt | UsageMetered,
    causation: UUID | None = None,
) -> Event:
    """Its id is derived from the answer: however often the node runs, it is one event."""
    conversation = state["conversation_id"]
    return Event(
        id=uuid5(NAMESPACE_OID, f"{part}/{tenant}/{conversation}/{answer.id or ''}"),
        source=SOURCE,
        tenant=tenant,
        thread=conversation,
        user=state["user_id"],
        causation=causation,
        data=data,
    )


def _metered(answer: AIMessage, about: Mapping[str, Any]) -> UsageMetered:
    used = answer.usage_metadata
    return UsageMetered(
        purpose="answer",
        agent=about.get("agent"),
        provider=about.get("model_provider", "unknown"),
        model=about.get("model_name", "unknown"),
        tokens_in=used["input_tokens"] if used else 0,
        tokens_out=used["output_tokens"] if used else 0,
        cost_usd=about.get("cost_usd", 0.0),
        latency_ms=about.get("latency_ms", 0.0),
    )
