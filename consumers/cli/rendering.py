"""Formats read models and contexts as lines for people."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from turnlog.agent.context import plain_text
from turnlog.agent.counting import counted

if TYPE_CHECKING:
    from turnlog.agent.answering.receipts import RebuiltContext
    from turnlog.agent.context import Context
    from turnlog.projectors.models.conversation.message import Message

BAR = 30
NAMES = {
    "all": "everything fits",
    "1": "tier 1  summary and topics",
    "2": "tier 2  condensed",
    "3": "tier 3  in full",
}


def _speaker(message: "Message") -> str:
    name = plain_text.speaker_of(message)
    return message.role if name == message.role else f"{message.role}/{name}"


def _text(message: "Message") -> str:
    blocks = message.content if isinstance(message.content, list) else []
    parts = [plain_text.content_text(message.content)]
    parts += ["[image]" for block in blocks if block.get("type") == "image"]
    parts += [f"[call {call['name']} {call['arguments']}]" for call in message.tool_calls]
    return " ".join(part for part in parts if part).replace("\n", " ") or ("[thinking]" if blocks else "")


MESSAGE_COLUMNS: dict[str, Callable[["Message"], Any]] = {
    "SEQ": lambda message: str(message.seq),
    "TIME": lambda message: message.time,
    "SPEAKER": _speaker,
    "TEXT": _text,
}


def context_lines(context: "Context") -> list[str]:
    lines = [f"window {context.window:,} tokens, budget {context.budget:,}"]
    for tier in context.tiers:
        used = f"{tier.tokens:>8,} tokens  {counted(len(tier.items), 'message')}"
        filled = min(BAR, round(BAR * tier.tokens / max(context.budget, 1)))
        lines.append(f"{NAMES[tier.tier]:<28} {'█' * filled + '·' * (BAR - filled)} {used}")
    dropped = {remark.seq for remark in context.dropped}
    if dropped:
        lines.append(f"{'left out':<28} {counted(len(dropped), 'turn')} (in the log, the transcript and recall)")
    lines.append("")
    for message in context.messages:
        content = message.get("content")
        text = content if isinstance(content, str) else plain_text.content_text(content or [])
        calls = "".join(f" [call {c['function']['name']}]" for c in message.get("tool_calls", ()))
        lines.append(f"{message['role']:>10}  {_short(text)}{calls}")
    return lines


def past_document(past: "RebuiltContext", as_of: int) -> dict[str, Any]:
    """Returns the JSON object for a context as it was at the sequence `as_of`, compared with what the model got.

    recorded_receipt: the receipt of the answer made there, or null. receipt_matches: whether the receipt has the same
    hash; null if the two cannot be compared. forgotten_memories: ids of memories that the model got and that were
    forgotten later.
    """
    recorded = past.receipt.model_dump(mode="json") if past.receipt else None
    document: dict[str, Any] = {"as_of": as_of, "recorded_receipt": recorded, "receipt_matches": past.matches}
    document["forgotten_memories"] = [str(memory) for memory in past.forgotten]
    return document | past.context.as_json()


def past_lines(past: "RebuiltContext", as_of: int) -> list[str]:
    return [f"as of sequence {as_of}: {_compared(past)}", *context_lines(past.context)]


def _compared(past: "RebuiltContext") -> str:
    if past.receipt is None:
        return "no answer was made here, so these are today's settings"
    if past.matches is None:
        return "an answer was made here with other options, so nothing is compared"
    if past.matches:
        return "exactly the messages that the model got for the answer made here (same hash as in its receipt)"
    if count := len(past.forgotten) + past.withheld:
        return f"not what the model got for the answer made here: {count} of its memories were forgotten since"
    return "NOT what the model got for the answer made here: its receipt has another hash"


def _short(text: str, width: int = 140) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
