"""Tests the history text of a session: modes, real token counts, the threshold and the cut at the window."""

import pytest
from helpers.context_messages import assistant, image, text, thinking, tool, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.context import counter_for
from turnlog.agent.conversations.sessions.history import build_history, line_text, lines_of, retained, turn_tokens
from turnlog.events.contracts import SegmentRules
from turnlog.projectors.models.conversation.message import Message

COUNTER = counter_for("gpt-4o-mini")
RULES = SegmentRules()
SMALL = SegmentRules(model_context_window=256)


def exchange(number: int, words: str = "word") -> list[Message]:
    return [user(f"question {number} {words}"), assistant(f"answer {number} {words}")]


def exchanges(count: int, words: str = "word") -> list[list[Message]]:
    return [exchange(number, words) for number in range(1, count + 1)]


def shown(turn: list[Message]) -> str:
    return "\n".join(filter(None, map(line_text, lines_of(turn))))


def tokens(text: str) -> int:
    return len(COUNTER.encoding.encode_ordinary(text))


def test_full_history_is_every_turn_as_lines_of_user_and_assistant() -> None:
    built = build_history("", exchanges(2), "", RULES, COUNTER)
    expected = "User: question 1 word\nAssistant: answer 1 word\nUser: question 2 word\nAssistant: answer 2 word"
    assert built.history == built.full_history == expected


def test_a_summary_precedes_the_turns_of_the_segment() -> None:
    built = build_history("患者头晕。", exchanges(1), "", RULES, COUNTER)
    expected = "[Conversation Summary]\n患者头晕。\n\nUser: question 1 word\nAssistant: answer 1 word"
    assert built.history == expected


def test_an_empty_session_has_an_empty_history() -> None:
    built = build_history("", [], "", RULES, COUNTER)
    assert (built.history, built.full_history, built.tokens, built.should_checkpoint) == ("", "", 0, False)


@given(
    st.lists(st.tuples(st.text(max_size=40), st.sampled_from(["hello. ", "我有高血压，", "a\nb ", "  "])), max_size=6),
    st.text(max_size=60),
)
def test_tokens_are_those_of_the_text_and_the_query(said: list[tuple[str, str]], query: str) -> None:
    turns = [[user(first + second), assistant(second + first)] for first, second in said]
    built = build_history("", turns, query, RULES, COUNTER)
    whole = tokens(built.full_history + "\n") if turns else 0
    assert built.tokens == pytest.approx(whole + tokens(query), abs=2 * len(turns))


def test_tokens_of_plain_turns_are_exact() -> None:
    built = build_history(
        "A summary.", exchanges(50, "with some words. 我最近感觉头晕，应该怎么办？"), "what next?", RULES, COUNTER
    )
    assert built.tokens == tokens(built.full_history + "\n") + tokens("what next?")
    assert built.ratio == built.tokens / 16_000


@pytest.mark.parametrize("summary", ["", "They talked."], ids=["FULL_HISTORY", "SUMMARY_N"])
def test_the_threshold_asks_for_a_checkpoint_in_any_mode(summary: str) -> None:
    turns = exchanges(10)
    used = build_history(summary, turns, "", SMALL, COUNTER).tokens
    at = SegmentRules(model_context_window=256, token_threshold_ratio=used / 256)
    above = SegmentRules(model_context_window=256, token_threshold_ratio=(used + 1) / 256)
    assert build_history(summary, turns, "", at, COUNTER).should_checkpoint
    assert not build_history(summary, turns, "", above, COUNTER).should_checkpoint
    assert build_history(summary, turns, "one more", above, COUNTER).should_checkpoint, "the query counts"


def test_a_line_counts_the_oldest_turns_that_exceed_the_window() -> None:
    turns = exchanges(60)
    built = build_history("A summary.", turns, "now?", SMALL, COUNTER)
    head, summary, gap, left_out, *lines = built.history.splitlines()
    count = 60 - len(lines) // 2
    assert (head, summary, gap) == ("[Conversation Summary]", "A summary.", "")
    assert left_out == f"[{count} earlier turns are left out here: the history is longer than the window of 256 tokens]"
    assert lines[-1] == "Assistant: answer 60 word"
    assert tokens(built.history) + tokens("now?") <= 256
    assert built.full_history.count("User:") == 60
    assert built.ratio > 1


def test_the_newest_turn_stays_though_it_is_longer_than_the_window() -> None:
    built = build_history("", [exchange(1), exchange(2, "word " * 400)], "", SMALL, COUNTER)
    assert "[1 earlier turns are left out" in built.history
    assert "question 2" in built.history


def test_a_query_longer_than_the_window_breaks_nothing() -> None:
    assert build_history("", [], "word " * 400, SMALL, COUNTER).history == ""


def test_a_round_of_tools_is_one_line_with_short_results() -> None:
    turn = [
        user("when?"),
        assistant("Let me see.", "a", "b"),
        tool("a", "8 May\nat noon"),
        tool("b", "x" * 300),
        assistant("8 May."),
    ]
    lines = shown(turn).splitlines()
    assert lines == [
        "User: when?",
        'Assistant: Let me see. [called search({"q": "x"})] [called search({"q": "x"})] '
        f"[result: 8 May at noon] [result: {'x' * 200}... (truncated)]",
        "Assistant: 8 May.",
    ]
    assert turn_tokens(turn, COUNTER) == tokens(shown(turn) + "\n")


def test_blocks_show_text_images_and_tools_but_no_thinking() -> None:
    turn = [
        user([text("look"), image()]),
        assistant([thinking("hm"), text("I look."), tool_use("t1", "zoom", by=2)]),
        user([tool_result("t1", "a cat")]),
        assistant([thinking("only this")]),
    ]
    assert shown(turn).splitlines() == [
        "User: look",
        "[image: https://example.org/a.png]",
        'Assistant: I look. [called zoom({"by": 2})] [result: a cat]',
    ]


def test_a_result_without_its_call_has_a_separate_line() -> None:
    assert shown([tool("gone", "42")]) == "Tool: [result: 42]"


@pytest.mark.parametrize(("recent", "kept"), [(8, 8), (30, 20), (1, 1), (0, 1)])
def test_a_checkpoint_keeps_the_recent_turns_and_at_least_one(recent: int, kept: int) -> None:
    assert retained(exchanges(20), recent, RULES, COUNTER) == kept


def test_kept_turns_take_at_most_half_of_what_the_threshold_allows() -> None:
    turns = exchanges(20, "word " * 20)
    kept = retained(turns, 8, SMALL, COUNTER)
    sizes = [turn_tokens(turn, COUNTER) for turn in turns]
    assert 1 <= kept < 8
    assert sum(sizes[-kept:]) <= 96 < sum(sizes[-kept - 1 :])


def test_one_huge_turn_of_any_size_is_kept() -> None:
    assert retained([exchange(1, "word " * 5_000)], 8, RULES, COUNTER) == 1
    assert retained([], 8, RULES, COUNTER) == 0


def test_a_line_is_counted_once_per_process() -> None:
    """A stored message never changes, so its count is cached by event id and its text is not read again."""
    messages = exchange(1)
    first = turn_tokens(messages, COUNTER)
    longer = [Message(m.seq, m.event_id, m.role, "word " * 500, m.time) for m in messages]
    assert turn_tokens(longer, COUNTER) == first
