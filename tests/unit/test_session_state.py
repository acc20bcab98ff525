"""The session is a fold of events, and messages are grouped into turns of a conversation."""

from dataclasses import replace
from typing import Any

import pytest
from helpers.sample_events import BLOCKS, MAY_8, event, turn

from turnlog.events.contracts import (
    Erased,
    Event,
    Recorded,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
    SessionCreated,
    SessionUpdated,
    ThreadDeleted,
    ThreadRenamed,
    ToolResultBlock,
)
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.sessions.state import SessionState, evolve, turns_of

CALL = [{"id": "c", "name": "look"}]


def folded(*events: Event, start: SessionState | None = None) -> SessionState | None:
    state = start
    first = start.seq + 1 if start else 1
    for seq, recorded in enumerate(events, first):
        state = evolve(state, Recorded(recorded, seq, 0, recorded.time))
    return state


def begun(*events: Event, **created: Any) -> SessionState:
    state = folded(event(SessionCreated(**created)), *events)
    assert state is not None
    return state


def ended(covered: int, **more: Any) -> Event:
    checkpoint = {"summary": "S.", "recent_turns": 1, "turns_covered": 1, "trigger": "manual", **more}
    return event(SegmentCheckpointed(covered_seq=covered, **checkpoint))


def contents(state: SessionState | None) -> list[Any]:
    assert state is not None
    return [message.content for message in state.segment]


def test_without_session_created_there_is_no_session() -> None:
    assert folded(turn("hi"), event(SessionUpdated(global_state={})), ended(1)) is None


def test_a_new_session_is_empty_with_its_rules() -> None:
    state = begun(rules=SegmentRules(recent_turns=2), agent="triage", user_snapshot={"name": "Ann"})
    assert (state.created_seq, state.covered_seq, state.seq, state.updated_at) == (1, 1, 1, MAY_8)
    assert (state.mode, state.segment, state.turn_count, state.checkpoint_id) == ("FULL_HISTORY", (), 0, None)
    assert (state.rules.recent_turns, state.current_agent_key, state.user_snapshot) == (2, "triage", {"name": "Ann"})


def test_answers_count_and_tool_calls_do_not() -> None:
    state = begun(
        turn("When?"),
        turn("Let me look.", "assistant", tool_calls=CALL),
        turn("8 May", "tool", tool_call_id="c"),
        turn(BLOCKS, "assistant"),
        turn("On 8 May.", "assistant", agent="planner", minutes=4),
        turn("Thanks", user="ann", minutes=2),
    )
    assert (state.turn_count, state.last_bot_message, state.current_agent_key) == (1, "On 8 May.", "planner")
    assert (state.user, state.updated_at, state.seq) == ("ann", turn(minutes=2).time, 7)
    assert [message.role for message in state.segment] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "assistant",
        "user",
    ]


def test_the_first_user_that_is_known_stays() -> None:
    assert begun(turn("a", user="ann"), turn("b", user="bob")).user == "ann"
    assert begun(turn("a", user="ann"), event(SessionCreated(), user="cy")).user == "cy"


def test_an_update_replaces_whole_parts_and_leaves_the_others() -> None:
    state = begun(event(SessionUpdated(global_state={"a": 1}, user_snapshot={"name": "Ann"}, current_agent_key="x")))
    again = folded(event(SessionUpdated(global_state={"b": 2})), start=state)
    assert again is not None
    assert (again.global_state, again.user_snapshot, again.current_agent_key) == ({"b": 2}, {"name": "Ann"}, "x")


def test_a_checkpoint_keeps_the_turns_after_its_last_covered_turn() -> None:
    state = begun(turn("one"), turn("two"), turn("three"), ended(3, recent_turns=4))
    assert (state.mode, state.summary, state.covered_seq, state.recent_turns) == ("SUMMARY_N", "S.", 3, 4)
    assert (contents(state), state.segment_complete) == (["three"], True)
    assert contents(folded(turn("four"), start=state)) == ["three", "four"]


def test_a_checkpoint_cannot_cover_future_turns() -> None:
    state = begun(turn("one"), ended(99))
    assert (state.covered_seq, contents(state)) == (3, [])
    assert contents(folded(turn("two"), start=state)) == ["two"]


def test_a_checkpoint_of_turns_before_a_reset_changes_only_the_time() -> None:
    state = begun(turn("one"), event(SessionCreated()), turn("anew"))
    late = folded(ended(2), start=state)
    assert late is not None
    assert replace(late, seq=state.seq) == state


@pytest.mark.parametrize(
    "going_back", [event(SegmentCheckpointFailed(attempts=3, error="away")), ended(2, summary="less")]
)
def test_a_segment_that_begins_before_the_known_turns_is_marked_incomplete(going_back: Event) -> None:
    state = begun(turn("one"), turn("two"), turn("three"), ended(3))
    back = folded(going_back, start=state)
    assert back is not None
    assert not back.segment_complete
    assert back.segment_after < state.segment_after


def test_a_failed_checkpoint_before_any_other_leaves_the_segment_whole() -> None:
    state = begun(turn("one"), event(SegmentCheckpointFailed(attempts=3, error="away")))
    assert (state.mode, contents(state), state.segment_complete) == ("FULL_HISTORY", ["one"], True)


def test_a_reset_forgets_everything() -> None:
    state = begun(turn("one", user="ann", agent="x"), turn("two", "assistant"), ended(2), event(SessionCreated()))
    assert state == replace(begun(), created_seq=5, covered_seq=5, seq=5)


@pytest.mark.parametrize("removal", [ThreadDeleted(), Erased()])
def test_a_removal_ends_the_session(removal: Any) -> None:
    assert folded(event(SessionCreated()), turn("one"), event(removal), turn("two")) is None


def test_other_events_leave_the_session_as_it_is() -> None:
    state = begun(turn("one"))
    assert folded(event(ThreadRenamed(label="x")), start=state) is state
    request = SegmentCheckpointRequested(rules=SegmentRules(), estimated_tokens=9, token_ratio=0.8, through_seq=2)
    asked = folded(event(request), start=state)
    assert asked is not None
    assert replace(asked, seq=state.seq) == state


def test_old_data_without_a_checkpoint_counts_as_full_history() -> None:
    old = replace(begun(turn("one")), mode="SUMMARY_N", covered_seq=2)
    assert old.segment_after == old.created_seq


def message(role: str, content: Any = "x", **more: Any) -> Message:
    recorded = turn(content, role, **more)
    state = begun(recorded)
    return state.segment[0]


def turns(*messages: Message) -> list[int]:
    return [len(turn) for turn in turns_of(messages)]


USER, ASSISTANT, SYSTEM = message("user"), message("assistant"), message("system")
CALLING, RESULT = message("assistant", tool_calls=CALL), message("tool", tool_call_id="c")
BLOCK_CALL = message("assistant", [{"type": "tool_use", "id": "c", "name": "look"}])
BLOCK_RESULT = message("user", (ToolResultBlock(tool_use_id="c", content="8 May"),))


@pytest.mark.parametrize(
    ("messages", "sizes"),
    [
        ([], []),
        ([USER, ASSISTANT, USER, ASSISTANT], [2, 2]),
        ([USER, USER, ASSISTANT, USER], [3, 1]),
        ([USER, CALLING, RESULT, CALLING, RESULT, ASSISTANT, USER, ASSISTANT], [6, 2]),
        ([USER, BLOCK_CALL, BLOCK_RESULT, ASSISTANT, USER], [4, 1]),
        ([ASSISTANT, USER, ASSISTANT], [1, 2]),
        ([USER, ASSISTANT, ASSISTANT, ASSISTANT], [2, 1, 1]),
        ([USER, CALLING, USER, ASSISTANT], [2, 2]),
        ([SYSTEM, USER, ASSISTANT, SYSTEM, USER], [3, 2]),
        ([RESULT, ASSISTANT, RESULT, USER], [3, 1]),
    ],
)
def test_a_turn_consists_of_the_question_its_tool_rounds_and_the_answer(
    messages: list[Message], sizes: list[int]
) -> None:
    assert turns(*messages) == sizes
    assert [message for group in turns_of(messages) for message in group] == messages
