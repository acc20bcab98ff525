"""Defines a context and its receipt: the exact text that the model saw, its source events, and the turns that were left
out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

from pydantic_core import to_json

from turnlog.agent.context.message_units import Remark
from turnlog.agent.context.pin import Item
from turnlog.agent.context.wire import Wire
from turnlog.events.contracts import AnswerReceipt, KnownOfUser, ReceiptSettings, ReceiptTier, Span, TurnSpans
from turnlog.events.contracts.derived import MOST_CHUNKS

SPANS_OF_A_REMARK = 8
TierName = Literal["all", "1", "2", "3"]


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier: its tokens, its maximum tokens, and its messages in order.

    The latest user message may exceed its tier's limit; all tiers together never exceed the budget.
    """

    tier: TierName
    tokens: int
    limit: int
    items: tuple[Item, ...]


# Chinese translations of the reasons of remarks.
REASONS_ZH: Mapping[str, str] = {
    "older than what fits into the budget": "比预算能容纳的更早",
    "larger than tier 2's whole share": "大于第二层的全部份额",
    "nothing but thinking or empty blocks": "只有思考或空内容",
    "second result for the same call": "同一调用的第二个结果",
    "second result for the same call left out": "省略了同一调用的第二个结果",
    "result without its call, shown as text": "没有对应调用的结果，按文字显示",
    "call without a result, given a placeholder": "没有结果的调用，以占位内容代替",
    "condensed, since it holds the latest user message and is too large": "含最新的用户消息但太大，已压缩",
    "cut in the middle: larger than the whole budget": "大于全部预算，从中间截断",
    "no room beside the latest user message": "最新的用户消息之外没有空间",
}


@dataclass(frozen=True, slots=True)
class Remarks:
    """Turns that were left out or altered for one reason."""

    reason: str
    turns: TurnSpans


@dataclass(frozen=True, slots=True)
class ContextReceipt:
    """The sources of a context. Its size does not grow with the thread.

    dropped: turns that are not shown. remarks: why turns are not shown, or not in the form of their tier. state: all
    turns from which the context was built.

    context_hash: SHA-256 of the messages' JSON; the same input always gives the same hash.
    """

    as_of_seq: int
    model: str
    encoding: str
    window: int
    budget: int
    tiers: tuple[ReceiptTier, ...]
    dropped: TurnSpans
    remarks: tuple[Remarks, ...]
    state: tuple[Span, ...]
    recalled_chunks: tuple[str, ...]
    memories: tuple[str, ...]
    known: KnownOfUser | None
    relevant: tuple[int, ...]
    context_hash: str
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """The messages of a request, the system prompt first, and their receipt. budget: tokens of all tiers.

    reserve: tokens of the window that are kept for the answer. Receipts do not contain it, so a context that is built
    again for an answer has the usual number.

    dropped: every turn that is not shown, with the reason. altered: every turn that is shown in another form than that
    of its tier (unchanged, or condensed in tier 2), with the reason.
    """

    messages: list[Wire]
    budget: int
    window: int
    reserve: int
    tiers: tuple[Tier, ...]
    receipt: ContextReceipt
    dropped: tuple[Remark, ...] = ()
    altered: tuple[Remark, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the document of `turnlog context --json`: budget, window, tiers, messages, receipt."""
        tiers = [
            {"tier": t.tier, "tokens": t.tokens, "limit": t.limit, "items": [i._asdict() for i in t.items]}
            for t in self.tiers
        ]
        receipt = {name: getattr(self.receipt, name) for name in self.receipt.__dataclass_fields__}
        receipt["tiers"] = [tier.model_dump(mode="json") for tier in self.receipt.tiers]
        receipt["dropped"] = self.receipt.dropped.model_dump(mode="json")
        receipt["remarks"] = [
            {"reason": remark.reason, "turns": remark.turns.model_dump(mode="json")} for remark in self.receipt.remarks
        ]
        return {
            "budget": self.budget,
            "window": self.window,
            "tiers": tiers,
            "messages": self.messages,
            "receipt": receipt,
        }


def receipt_tier(
    tier: Tier, summary_seq: int | None, topics: Sequence[str], positions: Mapping[int, int]
) -> ReceiptTier:
    """Returns the tier in the form of receipts. Tier 1 has the sequence of the summary and the topics instead of turns.
    positions: as in `spans_of`."""
    if tier.tier == "1":
        return ReceiptTier(tier="1", tokens=tier.tokens, summary_seq=summary_seq, topics=tuple(topics))
    return ReceiptTier(tier=tier.tier, tokens=tier.tokens, turns=TurnSpans.of((i.seq for i in tier.items), positions))


def remarks_by_reason(remarks: Iterable[Remark], positions: Mapping[int, int]) -> tuple[Remarks, ...]:
    """Returns the remarks as spans of turns, one value for each reason. positions: as in `spans_of`."""
    seqs: dict[str, list[int]] = {}
    for remark in remarks:
        seqs.setdefault(remark.reason, []).append(remark.seq)
    return tuple(Remarks(reason, TurnSpans.of(turns, positions, SPANS_OF_A_REMARK)) for reason, turns in seqs.items())


def answer_receipt(
    receipt: ContextReceipt,
    *,
    request_id: UUID,
    turn_id: UUID,
    answer_ids: tuple[UUID, ...],
    system_prompt: str,
    settings: ReceiptSettings,
    recalled_chunks: tuple[str, ...] = (),
) -> AnswerReceipt:
    """Returns the data of the event that stores the receipt. recalled_chunks: ids of chunks that the tool loop fetched
    after the context was built; the event has at most MOST_CHUNKS ids."""
    return AnswerReceipt(
        request_id=request_id,
        turn_id=turn_id,
        answer_ids=answer_ids,
        as_of_seq=receipt.as_of_seq,
        model=receipt.model,
        window=receipt.window,
        budget=receipt.budget,
        tiers=receipt.tiers,
        recalled_chunks=tuple(dict.fromkeys(receipt.recalled_chunks + recalled_chunks))[:MOST_CHUNKS],
        memories=receipt.memories,
        known=receipt.known,
        dropped=receipt.dropped,
        state=receipt.state,
        context_hash=receipt.context_hash,
        system_prompt=system_prompt,
        settings=settings,
        relevant=receipt.relevant,
        doubt=receipt.doubt,
    )


def context_hash(messages: Sequence[Wire]) -> str:
    """Returns the SHA-256 (hex) of the messages as they are sent: JSON in UTF-8 without spaces, with keys in the order
    of insertion."""
    return sha256(to_json(messages)).hexdigest()
