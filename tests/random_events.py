"""Random events of sessions, LangGraph and forks, for tests that compare a read model with its rebuild."""

from collections.abc import Callable

from hypothesis import strategies as st
from samples import event

from turnlog.events.contracts import Event, ForkedSummary, ThreadForked
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
        lambda ns, one, parent, channel, version, run, lists: made(
            CheckpointSaved(
                checkpoint_ns=ns,
                checkpoint_id=one,
                parent_checkpoint_id=parent,
                checkpoint={"v": 4, "id": one, "channel_values": {}, "channel_versions": {channel: version}},
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
        lambda ns, one, idx, replace, data: made(
            CheckpointWritesSaved(
                checkpoint_ns=ns,
                checkpoint_id=one,
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
