"""The rows of `sessions` equal a fold of the log, and one query reads a row with the turns of its current segment."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from helpers.nightly import examples
from helpers.projection_spec import Spec, seq, stored
from helpers.sample_events import BLOCKS, DERIVED, event, turn
from helpers.servers import rows
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from turnlog.events.contracts import (
    REMOVALS,
    Erased,
    Event,
    EventData,
    Recorded,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
    SessionCreated,
    SessionUpdated,
    TextBlock,
    ThreadDeleted,
    ThreadOpened,
    ToolCall,
    TurnRecorded,
)
from turnlog.projectors.engine import positions
from turnlog.projectors.engine.apply import apply_batch
from turnlog.projectors.engine.duplicates import without_duplicates
from turnlog.projectors.engine.incoming import Incoming, incoming
from turnlog.projectors.engine.positions import LIVE
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.models.sessions.lookup import SESSION, segment_checkpoints, session_state
from turnlog.projectors.models.sessions.projection import SESSIONS
from turnlog.projectors.models.sessions.state import SessionState, evolve, message_of

PROJECTIONS = (MESSAGES, SESSIONS, THREAD_ACTIVITY)
TABLES = "messages, thread_forks, sessions, session_checkpoints, thread_activity, projection_positions, event_ids"


def ended(covered: int, summary: str = "Short.", **more: Any) -> SegmentCheckpointed:
    fields = {"recent_turns": 1, "turns_covered": 1, "trigger": "automatic", **more}
    return SegmentCheckpointed(summary=summary, covered_seq=covered, **fields)


def at(data: EventData, minutes: int = 0, user: str | None = None) -> Event:
    return event(data, "t", minutes, user=user)


async def test_a_session_follows_its_turns_updates_and_checkpoints(db: Connection) -> None:
    await (
        Spec(db, SESSIONS)
        .given(
            turn("before"),
            at(SessionCreated(rules=SegmentRules(recent_turns=3), agent="triage", user_snapshot={"name": "Ann"})),
            turn("I am dizzy.", user="ann"),
            turn("", "assistant", tool_calls=[{"id": "c", "name": "look"}]),
            turn("found", "tool", tool_call_id="c"),
            turn("Since when?", "assistant", agent="doctor"),
        )
        .when(
            at(ended(seq(4), derivation=DERIVED)),
            at(SessionUpdated(global_state={"agent_slots": {"doctor": {"day": 3}}}), 5, "bob"),
        )
        .then(
            "SELECT user_id, created_seq, rules ->> 'recent_turns', current_agent_key, last_bot_message, turn_count, "
            "mode, summary, covered_seq, recent_turns, global_state #>> '{agent_slots,doctor,day}', "
            "user_snapshot ->> 'name', seq FROM sessions",
            [
                ("ann", seq(2), "3", "doctor", "Since when?", 1, "SUMMARY_N", "Short.", seq(4), 1, "3", "Ann", seq(8)),
            ],
        )
    )


async def test_no_event_adds_a_row_for_a_thread_without_a_session(db: Connection) -> None:
    spec = Spec(db, SESSIONS).given(turn("hi"), at(SessionUpdated(global_state={})), at(ended(1)), turn("yes"))
    await spec.then("SELECT FROM sessions UNION ALL SELECT FROM session_checkpoints", [])


async def test_a_reset_starts_an_empty_session_and_keeps_the_history_of_checkpoints(db: Connection) -> None:
    spec = (
        Spec(db, SESSIONS)
        .given(at(SessionCreated(), user="ann"), turn("hello"), at(ended(seq(2), "first")))
        .when(
            at(SessionCreated(), user="bob"), at(ended(seq(2), "of turns before the reset")), at(ended(seq(4), "new"))
        )
    )
    await spec.then("SELECT user_id, summary, turn_count, mode FROM sessions", [("bob", "new", 0, "SUMMARY_N")])
    now = await segment_checkpoints(db, "default", "t")
    assert [
        (checkpoint.summary, checkpoint.covered_seq, checkpoint.trigger, checkpoint.model) for checkpoint in now
    ] == [("new", seq(4), "automatic", None)]
    await spec.then("SELECT summary FROM session_checkpoints ORDER BY seq", [("first",), ("new",)])
    assert await segment_checkpoints(db, "other", "t") == []


@pytest.mark.parametrize("removal", [ThreadDeleted(), Erased()])
async def test_a_removed_thread_has_neither_session_nor_checkpoints(db: Connection, removal: EventData) -> None:
    spec = Spec(db, SESSIONS).given(at(SessionCreated()), turn("hi"), at(ended(seq(2)))).when(at(removal), turn("on"))
    await spec.then("SELECT FROM sessions UNION ALL SELECT FROM session_checkpoints", [])
    assert await session_state(db, "default", "t") is None


async def test_old_data_in_mode_summary_n_without_a_checkpoint_has_its_full_history(db: Connection) -> None:
    await replay(db, [at(SessionCreated()), turn("one"), turn("two"), at(ended(seq(2)))], 4)
    assert segment(await session_state(db, "default", "t")) == ["two"]
    await db.execute("UPDATE sessions SET checkpoint_id = NULL")
    state = await session_state(db, "default", "t")
    assert (segment(state), state and state.mode) == (["one", "two"], "FULL_HISTORY")


async def test_only_the_turns_of_the_current_segment_are_read(db: Connection) -> None:
    turns = [turn(f"message {n}") for n in range(500)]
    await replay(db, [at(SessionCreated()), *turns, at(ended(seq(496))), turn("newest")], 503)
    await db.execute("ANALYZE messages")
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {SESSION}"
    plan = (await (await db.execute(explained.encode(), {"tenant": "default", "thread": "t"})).fetchall())[0][0]
    assert sum(read["Actual Rows"] * read["Actual Loops"] for read in scans(plan, "messages")) == 6
    state = await session_state(db, "default", "t")
    assert segment(state) == [f"message {n}" for n in range(495, 500)] + ["newest"]


def scans(plan: Any, table: str) -> list[Any]:
    """Returns the nodes of a plan that read a table."""
    if isinstance(plan, list):
        return [node for part in plan for node in scans(part, table)]
    if not isinstance(plan, dict):
        return []
    own = [plan] if plan.get("Relation Name") == table else []
    return own + [node for part in plan.values() for node in scans(part, table)]


def segment(state: SessionState | None) -> list[Any]:
    assert state is not None
    return [message.content for message in state.segment]


async def replay(db: Connection, events: Sequence[Event], size: int) -> list[Incoming]:
    """Stores each event twice and delivers each batch twice; returns each event once."""
    await db.execute(f"TRUNCATE {TABLES}".encode())
    log = [stored(event, seq(n) + late) for n, event in enumerate(events, 1) for late in (0, 5)]
    now = await positions.load(db, PROJECTIONS, LIVE, 0)
    for start in range(0, len(log), size):
        part = log[start : start + size]
        for _ in ("delivered", "delivered again"):
            batch = await without_duplicates(db, [incoming(entry) for entry in part], 0)
            now = await apply_batch(db, PROJECTIONS, batch, now, through=part[-1].seq)
    assert await rows(db, "SELECT error FROM dead_letters") == []
    return [incoming(entry) for entry in log[::2]]


TURNS = st.builds(
    lambda content, role, agent, user, minutes: turn(content, role, agent=agent, user=user, minutes=minutes),
    st.sampled_from(["When?", "On 8 May. 五月", "", "a\0b", BLOCKS, (TextBlock(text="just text"),)]),
    st.sampled_from(["user", "assistant", "tool", "system"]),
    st.sampled_from([None, "", "doctor"]),
    st.sampled_from([None, "ann", "bob"]),
    st.integers(-50, 50),
)
CALLS = st.just(turn("", "assistant", tool_calls=(ToolCall(id="c", name="look", arguments='{"a": 1}'),)))
VALUES = st.sampled_from([{}, {"slots": {"a": [1, 2.5, None, True]}}, {"说": "a\0b\\u0000"}])
SESSION_EVENTS = st.one_of(
    st.builds(SessionUpdated, current_agent_key=st.sampled_from([None, "", "x"]), global_state=st.none() | VALUES),
    st.builds(SessionUpdated, user_snapshot=VALUES),
    st.builds(lambda n: ended(n, f"through {n}", recent_turns=n % 5), st.integers(0, 320)),
    st.builds(SegmentCheckpointFailed, attempts=st.just(3), error=st.just("away")),
    st.just(SegmentCheckpointRequested(rules=SegmentRules(), estimated_tokens=1, token_ratio=0.8, through_seq=1)),
    st.builds(SessionCreated, agent=st.none() | st.just("triage"), user_snapshot=st.none() | VALUES),
    st.builds(SessionCreated, after_seq=st.integers(0, 320), turn_count=st.just(7), last_bot_message=st.just("old")),
    st.sampled_from([ThreadDeleted(), Erased(), ThreadOpened(label="x")]),
)
EVENTS = st.one_of(TURNS, TURNS, CALLS, st.builds(at, SESSION_EVENTS, st.integers(0, 9), st.sampled_from([None, "cy"])))


@settings(
    max_examples=examples(60),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(st.tuples(EVENTS, st.sampled_from("tu")), max_size=30), st.integers(1, 70))
async def test_the_session_in_postgres_equals_a_fold_of_the_log(
    db: Connection, steps: list[tuple[Event, str]], size: int
) -> None:
    created = [at(SessionCreated(), user="ann").model_copy(update={"thread": thread}) for thread in "tu"]
    rest = [event.model_copy(update={"thread": thread, "id": UUID(int=n)}) for n, (event, thread) in enumerate(steps)]
    log = await replay(db, [*created, *rest], size)
    for thread in "tu":
        events = [entry.recorded for entry in log if entry.recorded and entry.recorded.event.thread == thread]
        state: SessionState | None = None
        for recorded in events:
            state = evolve(state, recorded)
        assert await session_state(db, "default", thread) == whole(state, events)


def whole(state: SessionState | None, events: Sequence[Recorded]) -> SessionState | None:
    """Returns the state with all turns of its segment, including turns that a fold no longer has."""
    if state is None or state.segment_complete:
        return state
    turns: list[Message] = []
    for recorded in events:
        if isinstance(recorded.event.data, TurnRecorded):
            turns.append(message_of(recorded, recorded.event.data))
        elif recorded.event.type in REMOVALS:
            turns.clear()
    segment = tuple(message for message in turns if message.seq > state.segment_after)
    return replace(state, segment=segment, segment_complete=True)
