"""The context contains everything if it fits, else three tiers, and its receipt records this."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from helpers.context_messages import assistant, chat, image, text, thinking, tool, tool_use, turn, user
from helpers.openai_validation import validate_openai_messages

from turnlog.agent.answering.thread_context import context_settings
from turnlog.agent.context import (
    Context,
    ContextInput,
    ContextSettings,
    Summary,
    WindowTooSmall,
    answer_receipt,
    build_context,
    counter_for,
)
from turnlog.agent.context.condense import MARK
from turnlog.agent.context.digest import digest, digest_text
from turnlog.agent.settings import load_settings
from turnlog.events.contracts import ReceiptSettings, TurnSpans
from turnlog.projectors.models.conversation.message import Message

COUNTER = counter_for("gpt-4o")
LONG = 3_000
SUMMARY = Summary("用户讨论了 PostgreSQL 表设计。", 7)


def context(messages: list[Message], **more: Any) -> Context:
    built = build_context(ContextInput(messages=messages, model="gpt-4o", **more))
    assert validate_openai_messages(built.messages) == []
    assert sum(tier.tokens for tier in built.tiers) <= built.budget
    return built


def tier(built: Context, name: str) -> Any:
    return next(t for t in built.tiers if t.tier == name)


def among(turns: TurnSpans, messages: list[Message]) -> set[int]:
    """Returns the sequences of the messages in the spans."""
    return {message.seq for message in messages if any(first <= message.seq <= last for first, last in turns.spans)}


def shown_seqs(built: Context, name: str) -> set[int]:
    return {item.seq for item in tier(built, name).items}


def test_everything_is_sent_unchanged_when_it_fits() -> None:
    messages = chat(20)
    built = context(messages, system_prompt="Be kind.")
    assert [t.tier for t in built.tiers] == ["all"]
    assert built.messages[0] == {"role": "system", "content": "Be kind."}
    assert [m["content"] for m in built.messages[1:]] == [m.content for m in messages]


def test_long_tool_results_are_whole_while_everything_fits() -> None:
    built = context([user(), assistant("", "a"), tool("a", "r" * 5_000)])
    assert built.messages[-1]["content"] == "r" * 5_000


def test_an_unpruned_thread_that_fits_needs_no_summary() -> None:
    assert [t.tier for t in context(chat(5), summary=SUMMARY, topics=["a"]).tiers] == ["all"]


def test_pruned_turns_are_represented_even_when_the_rest_fits() -> None:
    built = context(chat(5), summary=SUMMARY, topics=["a"], pruned_through_seq=3, system_prompt="s")
    assert [t.tier for t in built.tiers] == ["1", "all"]
    assert built.messages[1]["content"].startswith("[Conversation Summary]\n用户讨论了")
    assert len(built.messages) == 2 + 10


def test_tier_one_reads_exactly_as_designed() -> None:
    built = context(chat(5), summary=SUMMARY, topics=["数据库设计", "前端中文化"], pruned_through_seq=3)
    assert built.messages[0]["content"] == (
        "[Conversation Summary]\n"
        "用户讨论了 PostgreSQL 表设计。\n"
        "\n"
        "[Recallable Topics]: 数据库设计, 前端中文化\n"
        "Use the recall_memory tool to retrieve details about any topic above."
    )


def test_too_much_becomes_three_tiers_in_the_order_of_time() -> None:
    messages = chat(100)
    built = context(messages, summary=SUMMARY, topics=["a"], window=8_000)
    assert [t.tier for t in built.tiers] == ["1", "2", "3"]
    assert tier(built, "1").limit == built.budget // 10
    assert [item.seq for item in tier(built, "3").items] == [m.seq for m in messages[-10:]]
    middle = [item.seq for item in tier(built, "2").items]
    assert middle == [m.seq for m in messages[-10 - len(middle) : -10]]
    assert tier(built, "3").tokens <= built.budget * 0.55 + 1


def test_the_number_of_full_messages_is_configurable() -> None:
    built = context(chat(100), window=8_000, settings=ContextSettings(full_recent_count=4))
    assert len(tier(built, "3").items) == 4


def test_tier_three_keeps_to_its_share() -> None:
    messages = chat(30, words=400)
    built = context(messages, window=8_000)
    assert tier(built, "3").tokens <= built.budget - built.budget // 10 - built.budget * 35 // 100
    assert 0 < len(tier(built, "3").items) < 10


def test_fixed_shares_hold_when_unused_room_is_not_shared() -> None:
    built = context(chat(200), window=16_000, settings=ContextSettings(share_unused=False))
    assert tier(built, "2").tokens <= built.budget * 35 // 100
    shared = context(chat(200), window=16_000)
    assert context_settings(load_settings(strict_tiers=True)).share_unused is False
    assert context_settings(load_settings()).share_unused is True
    assert tier(shared, "2").tokens > tier(built, "2").tokens


def test_tier_two_is_condensed_and_tier_three_is_not() -> None:
    messages = [*chat(60), user(), assistant([thinking("hm " * 50), tool_use("a")]), tool("a", "r" * 900)]
    messages += [*chat(6), user(), assistant([thinking("so"), tool_use("b")]), tool("b", "s" * 900), user("so?")]
    built = context(messages, window=8_000, settings=ContextSettings(keep_thinking=True))
    results = [m["content"] for m in built.messages if m["role"] == "tool"]
    assert results == ["r" * 200 + MARK, "s" * 900]
    thoughts = [m["content"] for m in built.messages if m.get("tool_calls")]
    assert thoughts == [None, "<thinking>so</thinking>"]


def test_turns_with_only_thinking_are_left_out_of_tier_two_and_the_receipt_says_so() -> None:
    messages = [*chat(60), user(), assistant([text(""), thinking("hm")]), *chat(6), user("so?")]
    built = context(messages, window=8_000, settings=ContextSettings(keep_thinking=True))
    silent = messages[121].seq
    assert min(shown_seqs(built, "2")) < silent < min(shown_seqs(built, "3"))
    reasons = {remark.seq: remark.reason for remark in built.dropped}
    assert reasons[silent] == "nothing but thinking or empty blocks"
    assert len(built.dropped) + sum(len(t.items) for t in built.tiers) == len(messages)


def test_a_call_and_its_results_are_in_the_same_tier() -> None:
    messages = chat(60)
    for _ in range(30):
        messages += [user("look"), assistant("", "a", "b"), tool("a", "A" * 300), tool("b", "B" * 300)]
    for cut in range(8):
        built = context(messages[: len(messages) - cut], window=6_000)
        groups = {name: shown_seqs(built, name) for name in ("2", "3")}
        assert not groups["2"] & groups["3"]


def test_one_unit_may_have_more_messages_than_tier_three() -> None:
    ids = [f"c{n}" for n in range(15)]
    messages = [*chat(80), user("go"), assistant("", *ids), *(tool(i, "r" * 100) for i in ids)]
    built = context(messages, window=8_000)
    assert len(tier(built, "3").items) == 16
    assert any(m["content"] == "go" for m in built.messages)


def test_the_latest_user_message_may_borrow_from_the_other_tiers() -> None:
    messages = [*chat(60), question := user("why " * 4_500)]
    built = context(messages, window=8_000, summary=SUMMARY, topics=["a"])
    assert built.messages[-1]["content"] == question.content
    assert tier(built, "3").tokens > tier(built, "3").limit
    assert tier(built, "2").tokens > 0
    assert [t.tier for t in built.tiers] == ["1", "2", "3"]


def test_a_question_larger_than_the_budget_is_cut_in_the_middle_and_the_receipt_says_so() -> None:
    messages = [*chat(10), question := user("START " + "why " * 20_000 + " END")]
    built = context(messages, window=8_000)
    content = built.messages[-1]["content"]
    assert content.startswith("START why")
    assert content.endswith("why  END")
    assert "characters cut to fit the context window" in content
    assert tier(built, "3").tokens > built.budget * 0.95
    [remark] = built.altered
    assert remark.seq == question.seq
    assert "cut in the middle" in remark.reason


def test_a_cut_question_leaves_the_results_of_its_tools_visible() -> None:
    messages = [user("why " * 20_000), assistant("", "a"), tool("a", "the answer is 42")]
    built = context(messages, window=8_000)
    assert [m["role"] for m in built.messages] == ["user", "assistant", "tool"]
    assert built.messages[-1]["content"] == "the answer is 42"


def test_a_question_of_text_and_image_is_cut_too() -> None:
    built = context([user([text("why " * 20_000), image()])], window=4_000)
    assert built.messages[-1]["content"].endswith("[image]")


def test_the_question_stays_in_a_long_run_of_tools() -> None:
    messages = [*chat(30), user("do it all")]
    for n in range(40):
        messages += [assistant("", f"c{n}"), tool(f"c{n}", "r " * 400)]
    built = context(messages, window=8_000)
    assert any(m["content"] == "do it all" for m in built.messages)
    assert built.messages[-1]["role"] == "tool"


def test_a_huge_turn_in_the_middle_does_not_hide_earlier_turns() -> None:
    messages = [*chat(20), user("paste " * 5_000), *chat(10)]
    built = context(messages, window=8_000)
    giant = messages[40].seq
    assert giant in {remark.seq for remark in built.dropped}
    assert messages[39].seq in shown_seqs(built, "2")


def test_the_input_is_not_changed() -> None:
    messages = [*chat(60), assistant([thinking("t"), tool_use("a", x=[1])]), tool("a", "r" * 900)]
    before = json.dumps([str(m) for m in messages])
    context(messages, window=6_000)
    assert json.dumps([str(m) for m in messages]) == before


def test_the_system_prompt_and_the_tools_shrink_the_budget() -> None:
    bare = context(chat(5))
    tools = [{"type": "function", "function": {"name": "recall_memory", "parameters": {"type": "object"}}}]
    full = context(chat(5), system_prompt="You are an adviser. " * 50, tools=tools)
    assert bare.budget - full.budget == COUNTER.tools(tools) + COUNTER.wire(full.messages[0])


def test_a_prompt_that_leaves_no_room_is_refused_by_name() -> None:
    with pytest.raises(WindowTooSmall, match="shorten the prompt"):
        context(chat(1), system_prompt="long " * 5_000, window=4_000)


def test_an_empty_thread_gives_the_system_prompt_alone() -> None:
    built = context([], system_prompt="s")
    assert built.messages == [{"role": "system", "content": "s"}]
    assert built.receipt.as_of_seq == 0


# ---- tier 1


def test_a_summary_too_long_is_cut_with_a_mark_and_keeps_the_topics() -> None:
    made = digest("Once upon a time. " * 500, ["甲", "乙"], 200, COUNTER)
    assert made is not None
    assert made.tokens <= 200
    assert "... (cut to fit)\n\n[Recallable Topics]: 甲, 乙" in made.message["content"]


def test_too_many_topics_keep_the_first() -> None:
    topics = [f"topic number {n}" for n in range(2_000)]
    made = digest("Short.", topics, 300, COUNTER)
    assert made is not None
    assert made.topics == tuple(topics[: len(made.topics)])
    assert 0 < len(made.topics) < 100
    assert "[Conversation Summary]\nShort." in made.message["content"]


def test_topics_alone_and_summary_alone_leave_the_other_part_out() -> None:
    assert digest_text("s", []) == "[Conversation Summary]\ns"
    assert digest_text("", ["a"]).startswith("[Recallable Topics]: a\nUse the recall_memory tool")
    assert digest("", [], 100, COUNTER) is None


# ---- prefix


def test_the_prefix_stays_the_same_for_many_turns() -> None:
    messages = chat(130)
    later = chat(50)
    contexts = [
        context([*messages, *later[: 2 * n]], window=16_000, summary=SUMMARY, topics=["a"], system_prompt="s")
        for n in range(51)
    ]
    assert all([t.tier for t in built.tiers] == ["1", "2", "3"] for built in contexts)
    kept = [b.messages[: len(a.messages)] == a.messages for a, b in pairwise(contexts)]
    assert kept.count(False) <= 6
    assert all(built.messages[:2] == contexts[0].messages[:2] for built in contexts)


def test_large_tool_results_do_not_move_the_start_of_tier_two_back_and_forth() -> None:
    messages = chat(100)
    starts = []
    for n in range(50):
        if n % 5 == 0:
            messages += [user("look"), assistant("", "a"), tool("a", "result " * 1_500)]
        messages += chat(1)
        starts.append(min(shown_seqs(context(messages, window=16_000), "2")))
    assert starts == sorted(starts)
    assert sum(a != b for a, b in pairwise(starts)) <= 10


# ---- receipt


def test_the_receipt_accounts_for_every_turn() -> None:
    messages = [*chat(100), tool("gone", "x"), user("so?")]
    built = context(messages, window=6_000, summary=SUMMARY, topics=["a"])
    shown = {seq for t in built.receipt.tiers for seq in among(t.turns, messages)}
    dropped = among(built.receipt.dropped, messages)
    assert shown | dropped == {m.seq for m in messages}
    assert not shown & dropped
    assert built.receipt.as_of_seq == messages[-1].seq
    first = built.receipt.tiers[0]
    assert (first.tier, first.summary_seq, first.topics) == ("1", 7, ("a",))


def test_the_same_input_always_gives_the_same_hash() -> None:
    inputs = ContextInput(messages=chat(100), model="gpt-4o", window=6_000, summary=SUMMARY)
    assert build_context(inputs).receipt == build_context(inputs).receipt
    other = replace(inputs, summary=Summary("another"))
    assert build_context(other).receipt.context_hash != build_context(inputs).receipt.context_hash


def test_a_recorded_budget_takes_the_place_of_the_computed_one() -> None:
    tools = [{"type": "function", "function": {"name": "recall_memory", "parameters": {"type": "object"}}}]
    inputs = ContextInput(messages=chat(100), model="gpt-4o", window=6_000, tools=tools)
    then = build_context(inputs)
    again = build_context(replace(inputs, tools=(), budget=then.budget))
    assert again.receipt == then.receipt


def test_a_past_context_is_rebuilt_from_the_longer_thread() -> None:
    messages = chat(100)
    then = build_context(ContextInput(messages=messages[:150], model="gpt-4o", window=6_000))
    now = build_context(ContextInput(messages=messages, model="gpt-4o", window=6_000, as_of_seq=messages[149].seq))
    assert now.receipt == then.receipt
    assert now.messages == then.messages


def test_the_receipt_becomes_the_event_of_the_log() -> None:
    built = context(chat(100), window=6_000, summary=SUMMARY, topics=["a"], recalled_chunks=("k1",))
    turn_id, request_id, answer_id = uuid4(), uuid4(), uuid4()
    event = answer_receipt(
        built.receipt,
        request_id=request_id,
        turn_id=turn_id,
        answer_ids=(answer_id,),
        system_prompt="s",
        settings=ReceiptSettings(full_recent_count=10, condensed_tool_max=200, keep_thinking=True, enable_summary=True),
        recalled_chunks=("k2", "k1"),
    )
    assert event.tiers == built.receipt.tiers
    assert event.recalled_chunks == ("k1", "k2")
    assert event.dropped.count == len(built.dropped) > 0
    assert event.context_hash == built.receipt.context_hash


def test_a_context_is_one_json_document() -> None:
    document = json.loads(json.dumps(context(chat(100), window=6_000, summary=SUMMARY).as_json()))
    assert document.keys() == {"budget", "window", "tiers", "messages", "receipt"}
    assert document["tiers"][0].keys() >= {"tier", "tokens", "items"}


def test_a_question_that_borrows_from_the_middle_is_not_also_said_to_be_dropped() -> None:
    older = [user(""), user(""), user(""), assistant("", "a", "b"), user("")]
    messages = [*older, user("x " * 56), turn("system", "y " * 55), tool(None, "z " * 6)]
    built = context(messages, window=300, settings=ContextSettings(3, 0, share_unused=False))
    shown = {item.seq for tier in built.tiers for item in tier.items}
    assert messages[5].seq in shown
    assert not shown & {remark.seq for remark in built.dropped}


@pytest.mark.parametrize("shape", ["plain", "alternate", "thinking"])
def test_a_receipt_does_not_grow_with_the_thread(shape: str) -> None:
    """alternate: every second turn is larger than tier 2. thinking: every second turn is empty when condensed."""
    odd = {"plain": "hi", "alternate": "x " * 500, "thinking": [thinking("hm")]}[shape]
    messages = [assistant(odd) if n % 2 else user("so?") for n in range(LONG)]
    built = context(messages, window=1_500 if shape == "alternate" else 8_000)
    assert built.receipt.dropped.count == len({remark.seq for remark in built.dropped}) >= LONG // 2
    event = answer_receipt(
        built.receipt,
        request_id=uuid4(),
        turn_id=uuid4(),
        answer_ids=(uuid4(),),
        system_prompt="",
        settings=ReceiptSettings(full_recent_count=10, condensed_tool_max=200, keep_thinking=True, enable_summary=True),
        recalled_chunks=tuple(f"{n:032x}" for n in range(1_000)),
    )
    assert event.state == ((messages[0].seq, messages[-1].seq),)
    assert len(event.model_dump_json()) < 8_192
    assert len(json.dumps(built.as_json()["receipt"])) < 8_192
