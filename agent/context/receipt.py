"""The receipt of a context (C10): exactly what the model saw, from which events, and what was left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

from pydantic_core import to_json

from turnlog.agent.context.pin import Item
from turnlog.agent.context.turns import Remark
from turnlog.agent.context.wire import Wire
from turnlog.events.contracts import AnswerReceipt, KnownOfUser, ReceiptSettings, ReceiptTier

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


@dataclass(frozen=True, slots=True)
class ContextReceipt:
    """The sources of a context. dropped: turns not shown, and why; altered: turns not shown as stored.

    context_hash: SHA-256 of the messages' JSON; the same input always gives the same hash.
    """

    as_of_seq: int
    model: str
    encoding: str
    window: int
    budget: int
    tiers: tuple[ReceiptTier, ...]
    dropped: tuple[Remark, ...]
    altered: tuple[Remark, ...]
    recalled_chunks: tuple[str, ...]
    memories: tuple[str, ...]
    known: KnownOfUser | None
    relevant: tuple[int, ...]
    context_hash: str
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """The request's messages, system prompt first, and their receipt. budget: tokens of all tiers."""

    messages: list[Wire]
    budget: int
    window: int
    tiers: tuple[Tier, ...]
    receipt: ContextReceipt

    def as_json(self) -> dict[str, Any]:
        """For `turnlog context --json`: budget, window, tiers, messages, receipt."""
        tiers = [
            {"tier": t.tier, "tokens": t.tokens, "limit": t.limit, "items": [i._asdict() for i in t.items]}
            for t in self.tiers
        ]
        receipt = {name: getattr(self.receipt, name) for name in self.receipt.__dataclass_fields__}
        receipt["tiers"] = [tier.model_dump(mode="json") for tier in self.receipt.tiers]
        receipt["dropped"] = [remark._asdict() for remark in self.receipt.dropped]
        receipt["altered"] = [remark._asdict() for remark in self.receipt.altered]
        return {
            "budget": self.budget,
            "window": self.window,
            "tiers": tiers,
            "messages": self.messages,
            "receipt": receipt,
        }


def receipt_tier(tier: Tier, summary_seq: int | None, topics: Sequence[str]) -> ReceiptTier:
    """The tier as stored in receipts; tier 1 has its sources instead of turns."""
    if tier.tier == "1":
        return ReceiptTier(tier="1", tokens=tier.tokens, summary_seq=summary_seq, topics=tuple(topics))
    return ReceiptTier(tier=tier.tier, tokens=tier.tokens, seqs=tuple(sorted({item.seq for item in tier.items})))


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
    """The receipt's event; recalled_chunks: fetched by the tool loop after the context was built."""
    return AnswerReceipt(
        request_id=request_id,
        turn_id=turn_id,
        answer_ids=answer_ids,
        as_of_seq=receipt.as_of_seq,
        model=receipt.model,
        window=receipt.window,
        budget=receipt.budget,
        tiers=receipt.tiers,
        recalled_chunks=tuple(dict.fromkeys(receipt.recalled_chunks + recalled_chunks)),
        memories=receipt.memories,
        known=receipt.known,
        dropped_seqs=tuple(sorted({remark.seq for remark in receipt.dropped})),
        context_hash=receipt.context_hash,
        system_prompt=system_prompt,
        settings=settings,
        relevant=receipt.relevant,
        doubt=receipt.doubt,
    )


def context_hash(messages: Sequence[Wire]) -> str:
    """SHA-256 (hex) of the messages as sent: JSON in UTF-8 without blanks, keys in insertion order."""
    return sha256(to_json(messages)).hexdigest()
