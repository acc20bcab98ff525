"""Turns that are relevant to the question come first in tier 2."""

from typing import Any

import pytest
from helpers.context_messages import assistant, chat, tool, user
from helpers.openai_validation import validate_openai_messages

from turnlog.agent.context import Context, ContextInput, Summary, build_context
from turnlog.agent.context.condense import MARK
from turnlog.agent.context.selection import Pin, Selection, Shares, Weights, select
from turnlog.projectors.models.conversation.message import Message


def context(messages: list[Message], relevant: tuple[int, ...] = (), **more: Any) -> Context:
    built = build_context(ContextInput(messages=messages, model="gpt-4o", relevant=relevant, window=3_000, **more))
    assert validate_openai_messages(built.messages) == []
    assert sum(tier.tokens for tier in built.tiers) <= built.budget
    return built


def seqs(built: Context, name: str) -> list[int]:
    return [item.seq for tier in built.tiers if tier.tier == name for item in tier.items]


def test_an_old_pair_is_shown_first_in_tier_two_and_the_receipt_lists_it() -> None:
    messages = chat(60)
    pair = (messages[0].seq, messages[1].seq)
    built = context(messages, pair)
    assert seqs(built, "2")[:2] == list(pair)
    [tier] = [tier for tier in built.receipt.tiers if tier.tier == "2"]
    assert tier.turns.spans[0] == pair
    assert built.receipt.relevant == pair
    assert not {remark.seq for remark in built.dropped}.intersection(pair)


def test_relevant_turns_stay_in_the_order_of_time() -> None:
    messages = chat(60)
    built = context(messages, (messages[9].seq, messages[2].seq, messages[5].seq))
    shown = seqs(built, "2") + seqs(built, "3")
    assert shown == sorted(shown)
    assert {messages[2].seq, messages[5].seq, messages[9].seq} <= set(shown)


def test_a_relevant_result_comes_with_its_call_condensed() -> None:
    asked = [user(), assistant("", "a"), tool("a", "x" * 1_000)]
    messages = [*asked, *chat(60)]
    result = asked[-1]
    built = context(messages, (result.seq,))
    assert seqs(built, "2")[:2] == [messages[1].seq, result.seq]
    assert built.messages[1]["content"].endswith(MARK)


def test_the_newest_keep_a_quarter_of_tier_two_and_all_of_tier_three() -> None:
    messages = chat(60)
    plain = context(messages)
    built = context(messages, tuple(message.seq for message in messages[:80]))
    assert seqs(built, "3") == seqs(plain, "3")
    newest = [seq for seq in seqs(built, "2") if seq not in built.receipt.relevant]
    assert 0.15 < len(newest) / len(seqs(built, "2")) < 0.5
    assert newest == seqs(plain, "2")[-len(newest) :]


def test_without_relevant_turns_or_with_unknown_ones_nothing_changes() -> None:
    messages = chat(60)
    assert context(messages, (10**9,)).messages == context(messages).messages


def test_when_everything_fits_everything_is_sent_unchanged() -> None:
    messages = chat(3)
    assert context(messages, (messages[0].seq,)).messages == context(messages).messages


def test_a_recalled_pruned_turn_is_between_the_summary_and_the_rest() -> None:
    messages = chat(3)
    more: dict[str, Any] = {"summary": Summary("Before."), "pruned_through_seq": messages[1].seq}
    built = context([messages[0], *messages[2:]], (messages[0].seq,), **more)
    assert [tier.tier for tier in built.tiers] == ["1", "all"]
    assert built.messages[1]["content"] == messages[0].content


UNITS = Weights(full=[10] * 10, lean=[10] * 10, sizes=[1] * 10)
SHARES = Shares(total=60, middle=40, recent=20, recent_count=2, flow=True)


def selected(*relevant: int, pin: Pin | None = None, lean: dict[int, int] | None = None) -> Selection:
    weights = UNITS._replace(lean=[(lean or {}).get(i, 10) for i in range(10)])
    return select(weights, SHARES, pin, relevant)


@pytest.mark.parametrize(
    ("relevant", "middle"),
    [
        ((), (4, 5, 6, 7)),
        ((0,), (0, 5, 6, 7)),
        ((0, 1), (0, 1, 6, 7)),
        ((2, 1, 0, 3), (0, 1, 2, 7)),
        ((6,), (4, 5, 6, 7)),
        ((9, 8), (4, 5, 6, 7)),
    ],
)
def test_the_most_relevant_turns_get_room_first_and_turns_shown_anyway_cost_nothing(
    relevant: tuple[int, ...], middle: tuple[int, ...]
) -> None:
    """There are ten units of 10 tokens; tier 2 has room for four, three of them for relevant turns."""
    chosen = selected(*relevant)
    assert chosen.recent == (8, 9)
    assert chosen.middle == middle
    assert set(chosen.dropped) == set(range(8)) - set(middle)


def test_a_relevant_turn_that_is_too_large_leaves_its_room_to_the_next() -> None:
    assert selected(0, 1, lean={0: 35}).middle[0] == 1
    assert selected(0, 1, lean={0: 50}).middle[0] == 1


def test_the_question_keeps_its_place_though_it_is_relevant_to_itself() -> None:
    assert selected(3, pin=Pin(3, 10)).middle.count(3) == 1
