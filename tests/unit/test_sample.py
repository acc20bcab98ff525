"""The shipped conversation is long, bilingual and complete enough for every part of turnlog to have work."""

import re
from datetime import timedelta

import pytest

from turnlog.agent.operations.importers import ImportedTurn, read
from turnlog.agent.operations.sample import THREAD, USER, SampleQuestion, load_questions, load_sample
from turnlog.events.contracts import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock, TurnRecorded

CHINESE = re.compile(r"[一-鿿]")


def turns() -> list[ImportedTurn]:
    items = list(read(load_sample()))
    imported = [item for item in items if isinstance(item, ImportedTurn)]
    assert len(imported) == len(items)
    return imported


def blocks(data: TurnRecorded) -> tuple[object, ...]:
    return (TextBlock(text=data.content),) if isinstance(data.content, str) else data.content


def text(data: TurnRecorded) -> str:
    """Returns all text of the turn, including tool results."""
    parts = (getattr(block, "text", getattr(block, "content", "")) for block in blocks(data))
    return "\n".join(part for part in parts if isinstance(part, str))


def test_the_sample_is_one_thread_of_over_260_turns_in_time_order_over_weeks() -> None:
    sample = turns()
    assert len(sample) > 260
    assert {(turn.thread, turn.user) for turn in sample} == {(THREAD, USER)}
    times = [turn.time for turn in sample]
    assert times == sorted(times)
    assert times[-1] - times[0] > timedelta(weeks=6)
    assert {time.year for time in times} == {2026}
    assert len({turn.data.source_id for turn in sample}) == len(sample)


def test_no_turn_of_the_student_or_the_adviser_is_repeated() -> None:
    spoken = [text(turn.data) for turn in turns() if turn.data.role in ("user", "assistant")]
    spoken = [said for said in spoken if said]
    assert len(set(spoken)) == len(spoken)


def test_english_and_chinese_both_carry_at_least_a_quarter_of_the_talk() -> None:
    spoken = [text(turn.data) for turn in turns() if turn.data.role in ("user", "assistant")]
    chinese = sum(bool(CHINESE.search(said)) for said in spoken)
    english = sum(len(re.findall(r"[A-Za-z']+", said)) > 8 for said in spoken)
    assert chinese > len(spoken) / 4
    assert english > len(spoken) / 4


def test_every_tool_call_has_exactly_one_result_right_after_its_turn() -> None:
    waiting: list[str] = []
    used: list[str] = []
    for turn in turns():
        results = [block.tool_use_id for block in blocks(turn.data) if isinstance(block, ToolResultBlock)]
        if turn.data.role == "tool":
            assert results == [waiting.pop(0)]
            continue
        assert not waiting and not results
        waiting = [block.id for block in blocks(turn.data) if isinstance(block, ToolUseBlock)]
        used += waiting
    assert not waiting
    assert len(used) == len(set(used)) >= 15


def test_there_are_long_thoughts_and_results_for_the_condenser_to_shorten() -> None:
    all_blocks = [block for turn in turns() for block in blocks(turn.data)]
    thoughts = [len(block.thinking) for block in all_blocks if isinstance(block, ThinkingBlock)]
    results = [len(block.content) for block in all_blocks if isinstance(block, ToolResultBlock)]
    assert len(thoughts) >= 10
    assert max(thoughts) > 600
    assert sum(length > 1_000 for length in results) >= 5


@pytest.mark.parametrize("question", load_questions(), ids=lambda question: question.question)
def test_the_turns_named_by_a_question_exist_and_lie_early_enough_to_be_forgotten(question: SampleQuestion) -> None:
    positions = {turn.data.source_id: position for position, turn in enumerate(turns())}
    assert question.source_ids
    assert all(positions[source_id] < len(positions) - 10 for source_id in question.source_ids)


def test_the_questions_are_in_both_languages() -> None:
    languages = [question.language for question in load_questions()]
    assert min(languages.count("en"), languages.count("zh")) >= 5
