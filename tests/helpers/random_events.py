"""Generates random events of sessions, LangGraph, forks and memories, for tests that compare read models with
rebuilds."""

from collections.abc import Callable
from datetime import timedelta
from typing import get_args
from uuid import UUID

from helpers.sample_events import GPA, MAY_8, SOURCE, event
from hypothesis import strategies as st

from turnlog.events.contracts import (
    AgentConfigured,
    AgentSwitched,
    ApiKeyCreated,
    ApiKeyRevoked,
    Blob,
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    CompactionUndone,
    EntitiesCleared,
    EntitiesFound,
    Entity,
    EntityRelation,
    Event,
    ForkedSummary,
    Interval,
    JobRan,
    LimitName,
    LimitsChanged,
    ListGrowth,
    MemoriesAccessed,
    MemoriesCompacted,
    MemoriesEmbedded,
    MemoriesExtracted,
    MemoriesReviewed,
    MemoriesRevised,
    MemoryArchived,
    MemoryCompared,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRated,
    MemoryRecorded,
    PendingWrite,
    Plan,
    PlannedCall,
    PreferencesSet,
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
    ThreadForked,
    UserPreferences,
)

Make = Callable[[str], Event]
SEQS = st.integers(0, 60)
PARTS = st.none() | st.sampled_from([{}, {"slots": 1}, {"意图": "预约", "slots": {"a": [1, None]}}])
NAMESPACES = st.sampled_from(["", "child:1"])
IDS = st.sampled_from(["1ef1", "1ef2", "1ef3"])
CHANNELS = st.sampled_from(["messages", "plan"])


def made(data: object) -> Make:
    return lambda thread: event(data, thread)  # type: ignore[arg-type]


SESSIONS: st.SearchStrategy[Make] = st.one_of(
    st.builds(
        lambda user, agent, part: (
            lambda thread: event(SessionCreated(agent=agent, user_snapshot=part), thread, user=user)
        ),
        st.none() | st.just("ann"),
        st.none() | st.just("triage"),
        PARTS,
    ),
    st.builds(
        lambda agent, state, user: made(
            SessionUpdated(current_agent_key=agent, global_state=state, user_snapshot=user)
        ),
        st.none() | st.sampled_from(["triage", "doctor"]),
        PARTS,
        PARTS,
    ),
    st.builds(
        lambda n: made(
            SegmentCheckpointRequested(rules=SegmentRules(), estimated_tokens=n, token_ratio=0.8, through_seq=n)
        ),
        SEQS,
    ),
    st.builds(
        lambda text, n, trigger: made(
            SegmentCheckpointed(summary=text, recent_turns=n % 9, covered_seq=n, turns_covered=n, trigger=trigger)
        ),
        st.sampled_from(["", "She has headaches.", "她头晕。"]),
        SEQS,
        st.sampled_from(["automatic", "manual"]),
    ),
    st.just(made(SegmentCheckpointFailed(attempts=3, error="model-unavailable"))),
)
RUN_IDS, AGENTS = st.sampled_from([UUID(int=7), UUID(int=8)]), st.sampled_from(["orchestrator", "school"])
RUNS = st.one_of(
    st.builds(
        RunPlanned,
        run_id=RUN_IDS,
        agent=AGENTS,
        plan=st.sampled_from(["", "先查学校"]),
        calls=st.sampled_from([(), (PlannedCall(id="c1", name="get_profile"),)]),
        tokens_in=SEQS,
    ),
    st.builds(RunToolCalled, run_id=RUN_IDS, agent=AGENTS, call_id=st.just("c1"), tool=st.just("get_profile")),
    st.builds(
        RunToolAnswered, run_id=RUN_IDS, agent=AGENTS, call_id=st.just("c1"), tool=st.just("a"), is_error=st.booleans()
    ),
    st.builds(RunDelegated, run_id=RUN_IDS, from_agent=AGENTS, to_agent=AGENTS, depth=st.integers(1, 3)),
    st.builds(RunSolved, run_id=RUN_IDS, agent=AGENTS, code=st.none() | st.just("not-found"), tokens_out=SEQS),
)
GROWTH = st.builds(
    lambda list_id, first, base: ListGrowth(
        list_id=list_id.hex,
        first=first,
        base_list=f"l{first}" if base else None,
        base_count=first,
        items=({"turn": "01890a5d-ac96-774b-bcce-b302099a8057", "kind": "ai"},),
    ),
    st.uuids(),
    st.integers(0, 3),
    st.booleans(),
)
LANGGRAPH: st.SearchStrategy[Make] = st.one_of(
    st.builds(
        lambda ns, id_, parent, channel, version, run, lists: made(
            CheckpointSaved(
                checkpoint_ns=ns,
                checkpoint_id=id_,
                parent_checkpoint_id=parent,
                checkpoint={"v": 4, "id": id_, "channel_values": {}, "channel_versions": {channel: version}},
                metadata={"source": "loop", "step": 1},
                run_id=run,
                blobs=(Blob(channel=channel, version=version, encoding="msgpack", data="gaFh"),),
                lists=lists,
            )
        ),
        NAMESPACES,
        IDS,
        st.none() | IDS,
        CHANNELS,
        st.sampled_from(["1.0", "2.0"]),
        st.none() | st.just("run-1"),
        st.tuples() | st.tuples(GROWTH),
    ),
    st.builds(
        lambda ns, id_, idx, replace, data: made(
            CheckpointWritesSaved(
                checkpoint_ns=ns,
                checkpoint_id=id_,
                task_id="task",
                replace=replace,
                writes=(PendingWrite(idx=idx, channel="plan", encoding="msgpack", data=data),),
            )
        ),
        NAMESPACES,
        IDS,
        st.integers(-1, 1),
        st.booleans(),
        st.sampled_from(["oWE=", "gaFh"]),
    ),
    st.builds(
        lambda ns, ids, reason: made(CheckpointsDropped(checkpoint_ns=ns, checkpoint_ids=tuple(ids), reason=reason)),
        NAMESPACES,
        st.sets(IDS, min_size=1).map(sorted),
        st.sampled_from(["run", "prune"]),
    ),
    st.builds(
        lambda key, text: made(
            StoreItemPut(namespace=("users", "ann"), key=key, value={"text": text}, model="m", vectors={})
        ),
        st.sampled_from(["a", "键"]),
        st.sampled_from(["tea", "茶"]),
    ),
    st.builds(lambda key: made(StoreItemDeleted(namespace=("users", "ann"), key=key)), st.sampled_from(["a", "键"])),
)
FORKS: st.SearchStrategy[Make] = st.builds(
    lambda parent, at, summary: (
        lambda thread: event(
            ThreadForked(
                parent=thread[:-1] + parent,
                at_seq=at,
                message_count=at,
                summary=summary,
                topics={"essay": at},
                tagged_through=at,
                pruned_through=at // 2,
            ),
            thread,
        )
    ),
    st.sampled_from(["a", "b"]),
    st.integers(1, 30),
    st.none() | st.just(ForkedSummary(summary="Ann plans.", message_count=3, covered_seq=3, model="m")),
)
SHORT_TERM: st.SearchStrategy[Make] = st.one_of(SESSIONS, LANGGRAPH, FORKS)

MEMORY_IDS = st.integers(1, 4).map(lambda n: UUID(int=n))
MANY_IDS = st.lists(MEMORY_IDS, max_size=3, unique=True).map(tuple)
SHARES = st.sampled_from([0.0, 0.25, 1.0])
TIMES = st.integers(0, 9).map(lambda n: MAY_8 + timedelta(hours=n))
SOURCES = st.builds(
    lambda n, at: SOURCE.model_copy(update={"event_id": UUID(int=n), "seq": n, "said_at": at}), st.integers(1, 3), TIMES
)
MEMORIES_SAID = st.builds(
    lambda id_, content, key, sources, at: GPA.model_copy(
        update={"id": id_, "content": content, "dedupe_key": key, "sources": sources, "expires_at": at}
    ),
    MEMORY_IDS,
    st.sampled_from(["I run", "我跑步", "GPA is 3.80"]),
    st.none() | st.just("gpa"),
    st.lists(SOURCES, max_size=2).map(tuple),
    st.none() | TIMES,
)
INTERVALS = st.lists(
    st.builds(
        Interval,
        memory_id=MEMORY_IDS,
        valid_to=st.none() | TIMES,
        replaced_by=st.none() | MEMORY_IDS,
        reason=st.sampled_from(["superseded", "merged"]),
    ),
    max_size=2,
).map(tuple)
MEMORIES: st.SearchStrategy[Make] = st.one_of(
    st.builds(MemoryRecorded, memory=MEMORIES_SAID, intervals=INTERVALS),
    st.builds(
        MemoryConflictRaised,
        conflict_id=MEMORY_IDS,
        memory=MEMORIES_SAID,
        against=MANY_IDS,
        question=st.sampled_from(["Which one?", "哪个？"]),
    ),
    st.builds(
        MemoryConfirmed,
        memory_id=MEMORY_IDS,
        source=SOURCES,
        importance=SHARES,
        confidence=SHARES,
        intervals=INTERVALS,
    ),
    st.builds(MemoriesRevised, intervals=INTERVALS),
    st.builds(MemoryCompared, memory_id=MEMORY_IDS, intervals=INTERVALS),
    st.builds(MemoryRated, memory_id=MEMORY_IDS, importance=SHARES),
    st.builds(MemoryArchived, memory_id=MEMORY_IDS, reason=st.sampled_from(["no longer so", "我搬家了"])),
    st.builds(MemoryForgotten, memory_id=MEMORY_IDS, source_ids=SOURCES.map(lambda source: (source.event_id,))),
    st.builds(
        MemoryConflictAnswered,
        conflict_id=MEMORY_IDS,
        answer=st.sampled_from(["new", "old", "both"]),
        intervals=INTERVALS,
    ),
    st.builds(
        PreferencesSet,
        preferences=st.builds(UserPreferences, language=st.sampled_from([None, "zh", "en"])),
        cleared=st.sampled_from([(), ("language",), ("essay_tone",)]),
    ),
    st.builds(MemoriesAccessed, memory_ids=MANY_IDS),
    st.builds(MemoriesEmbedded, model=st.just("m"), dimensions=st.just(3), memory_ids=MANY_IDS),
    st.builds(MemoriesReviewed, due_at=TIMES, archived=MANY_IDS, deleted=MANY_IDS, expired=MANY_IDS),
    st.builds(
        MemoriesCompacted,
        method=st.sampled_from(["dedupe", "merge"]),
        members=MANY_IDS,
        memory=st.none() | MEMORIES_SAID,
        intervals=INTERVALS,
    ),
    st.builds(CompactionUndone, compaction_id=MEMORY_IDS, made=st.none() | MEMORY_IDS, intervals=INTERVALS),
    st.builds(
        MemoriesExtracted,
        conversation=st.sampled_from(["c", "d"]),
        stage=st.sampled_from(["rules", "llm"]),
        from_seq=SEQS,
        through_seq=SEQS,
        extractor=st.sampled_from(["1", "2"]),
        found=SEQS,
    ),
    st.builds(EntitiesCleared),
    st.builds(
        lambda name, description, attribute, target, source: EntitiesFound(
            entities=(
                Entity(
                    type="SCHOOL",
                    name=name,
                    description=description,
                    attributes={attribute: target},
                    relations=(EntityRelation(type="likes", target=target),),
                    sources=(source,),
                ),
            )
        ),
        st.sampled_from(["Yale", "yale", "耶鲁"]),
        st.none() | st.sampled_from(["old", "new"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["x", "y"]),
        SOURCES,
    ),
    st.builds(
        ApiKeyCreated,
        key_id=st.sampled_from(["k1", "k2"]),
        digest=st.just("5e" * 32),
        role=st.just("user"),
        scopes=st.just(("read",)),
        expires_at=st.none() | TIMES,
    ),
    st.builds(ApiKeyRevoked, key_id=st.sampled_from(["k1", "k2"])),
    st.builds(JobRan, job=st.just("decay"), due_at=TIMES, duration_ms=SHARES, errors=SEQS),
    st.builds(
        AgentConfigured,
        agent=st.sampled_from(["school", "orchestrator"]),
        system_prompt=st.none() | st.sampled_from(["a", "b"]),
        temperature=st.none() | SHARES,
        name=st.none() | st.just("Schools"),
        tools=st.none() | st.just(("recall_memory",)),
    ),
    RUNS,
    st.builds(AgentSwitched, agent=st.sampled_from(["school", "orchestrator"]), enabled=st.booleans()),
    st.builds(
        LimitsChanged,
        plan=st.sampled_from(get_args(Plan)),
        limits=st.dictionaries(st.sampled_from(get_args(LimitName)), SHARES, min_size=1),
    ),
).map(made)
