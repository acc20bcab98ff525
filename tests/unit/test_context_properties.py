"""The context of every thread is valid, within its budget and in order, and names all turns that it leaves out."""

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from helpers.context_messages import turn
from helpers.nightly import examples
from helpers.openai_validation import validate_openai_messages
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from turnlog.agent.context import ContextInput, ContextSettings, Summary, build_context, counter_for, shares_of
from turnlog.agent.context.condense import condense
from turnlog.agent.context.selection import OVER_BUDGET
from turnlog.agent.context.tokens import REPLY_PRIMING
from turnlog.agent.context.wire import WireOptions, body
from turnlog.projectors.models.conversation.message import Message

COUNTER = counter_for("gpt-4o")
OPENAI = TypeAdapter(list[ChatCompletionMessageParam])

words = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", " ", "你好，我想申请大学", "👩‍👩‍👧‍👦🎓", "<|endoftext|>", "e\u0301" * 9]),
    st.builds(lambda unit, n: unit * n, st.sampled_from(["word ", "中", "a", "😀", "\n"]), st.integers(0, 2_000)),
)
ids = st.sampled_from(["a", "b", "c", "call_0", "", "x" * 50])
names = st.sampled_from([None, "bob", "小明", "Mary Ann", "n" * 70])
text_block = st.builds(lambda t: {"type": "text", "text": t}, words)
image_block = st.just({"type": "image", "url": "https://example.org/a.png", "media_type": None})
thinking_block = st.builds(lambda t: {"type": "thinking", "thinking": t}, words)
use_block = st.builds(
    lambda i, t: {"type": "tool_use", "id": i, "name": "f.x", "input": {"q": t}}, ids, st.text(max_size=9)
)
result_block = st.builds(
    lambda i, c, e: {"type": "tool_result", "tool_use_id": i, "content": c, "is_error": e},
    ids,
    st.one_of(words, st.lists(st.one_of(text_block, image_block), max_size=2)),
    st.booleans(),
)
blocks = st.lists(st.one_of(text_block, image_block, thinking_block, use_block, result_block), max_size=4)
call = st.builds(lambda i, t: {"id": i, "name": "search", "arguments": t}, ids, st.text(max_size=9))


@st.composite
def threads(draw: st.DrawFn) -> list[Message]:
    """Generates random turns: valid exchanges, orphans, late or repeated results, any blocks in any role."""
    made = []
    for seq in range(1, draw(st.integers(1, 30)) + 1):
        role = draw(st.sampled_from(["user", "user", "assistant", "assistant", "tool", "tool", "system"]))
        more: dict[str, Any] = {"name": draw(names)}
        if role == "assistant":
            more["tool_calls"] = draw(st.lists(call, max_size=3))
        if role == "tool":
            more["tool_call_id"] = draw(st.one_of(st.none(), ids))
        made.append(turn(role, draw(st.one_of(words, blocks)), seq=seq, **more))
    return made


inputs = st.builds(
    ContextInput,
    messages=threads(),
    model=st.sampled_from(["gpt-4o", "gpt-4", "glm-4"]),
    system_prompt=st.sampled_from(["", "You are an adviser."]),
    summary=st.one_of(st.none(), st.builds(Summary, words, st.just(1))),
    topics=st.lists(st.text(max_size=12), max_size=6),
    pruned_through_seq=st.sampled_from([0, 1]),
    window=st.sampled_from([300, 600, 1_500, 4_000, 20_000]),
    relevant=st.lists(st.integers(0, 35), max_size=8),
    settings=st.builds(
        ContextSettings,
        full_recent_count=st.integers(1, 12),
        condensed_tool_max=st.sampled_from([0, 20, 200]),
        keep_thinking=st.booleans(),
        share_unused=st.booleans(),
    ),
)
thorough = settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(inputs)
def test_every_context_is_valid_and_within_budget(inputs: ContextInput) -> None:
    built = build_context(inputs)
    assert validate_openai_messages(built.messages) == []
    OPENAI.validate_python(built.messages)
    total = sum(tier.tokens for tier in built.tiers)
    assert total <= built.budget
    counter = counter_for(inputs.model)
    history = built.messages[1:] if inputs.system_prompt else built.messages
    assert total == sum(map(counter.wire, history))
    assert len(history) == sum(len(tier.items) for tier in built.tiers)


@thorough
@given(inputs, st.lists(words.filter(bool), max_size=2))
def test_every_message_has_its_share_of_the_window(inputs: ContextInput, notes: list[str]) -> None:
    inputs = replace(inputs, window=20_000, notes=[{"role": "user", "content": note[:400]} for note in notes])
    built, counter = build_context(inputs), counter_for(inputs.model)
    shares = shares_of(built, bool(inputs.system_prompt))
    assert [share.tokens for share in shares.messages] == [counter.wire(wire) for wire in built.messages]
    parts = [share.part for share in shares.messages]
    assert parts.count("memories") == len(notes) and parts.count("system") == bool(inputs.system_prompt)
    total = shares.system + shares.tools + shares.memories + shares.reserve + shares.safety + shares.free
    assert total + sum(tier.tokens for tier in built.tiers) + REPLY_PRIMING == shares.window


@pytest.mark.parametrize("answer, reserve", [(0, 16_000), (40_000, 40_000)])
def test_the_tokens_kept_for_the_answer_are_not_counted_as_tools(answer: int, reserve: int) -> None:
    shares = shares_of(build_context(ContextInput([], "gpt-4o", answer_tokens=answer)), has_system_prompt=False)
    assert (shares.reserve, shares.tools) == (reserve, 0)


@thorough
@given(inputs)
def test_the_latest_user_message_is_always_sent(inputs: ContextInput) -> None:
    built = build_context(inputs)
    options = WireOptions(inputs.settings.keep_thinking)
    spoken = [m for m in inputs.messages if m.role == "user" and body(m, options) is not None]
    if spoken:
        shown = [item.seq for tier in built.tiers for item in tier.items if item.role == "user"]
        assert spoken[-1].seq in shown


@thorough
@given(inputs)
def test_every_turn_is_in_one_tier_or_dropped_with_a_reason(inputs: ContextInput) -> None:
    built = build_context(inputs)
    places = [{i.seq for i in t.items} for t in built.tiers if t.tier != "1"]
    dropped = [remark.seq for remark in built.dropped]
    assert sum(map(len, places)) + len(dropped) == len(inputs.messages)
    assert set(dropped).union(*places) == {m.seq for m in inputs.messages}
    assert all(remark.reason for remark in built.dropped)


@thorough
@given(inputs)
def test_tiers_follow_each_other_in_time(inputs: ContextInput) -> None:
    """Units are in the order of their first turn; only a late result may be older than its position."""
    built = build_context(inputs)
    openers = [
        item.seq for tier in built.tiers for item in tier.items if tier.tier != "1" and item.role in ("user", "system")
    ]
    assert all(a <= b for a, b in pairwise(openers))
    assert [t.tier for t in built.tiers] in (["all"], ["1", "all"], ["2", "3"], ["1", "2", "3"])


@thorough
@given(inputs)
def test_building_changes_nothing_and_repeats_exactly(inputs: ContextInput) -> None:
    before = copy.deepcopy(inputs.messages)
    first, second = build_context(inputs), build_context(inputs)
    assert inputs.messages == before
    assert first == second


@thorough
@given(inputs)
def test_a_doubt_is_one_more_message_or_left_out_and_never_costs_a_turn(
    inputs: ContextInput,
) -> None:
    plain, built = build_context(replace(inputs, doubt=None)), build_context(replace(inputs, doubt="[NOTE] not found"))
    note = {"role": "user", "content": "[NOTE] not found"}
    assert built.tiers == plain.tiers
    if built.receipt.doubt is None:
        assert built.messages == plain.messages
    else:
        index = built.messages.index(note)
        assert [*built.messages[:index], *built.messages[index + 1 :]] == plain.messages
        assert counter_for(inputs.model).wire(note) <= max(
            built.budget - sum(tier.tokens for tier in built.tiers), built.window // 20
        )


@thorough
@given(inputs)
def test_relevant_turns_change_only_the_middle(inputs: ContextInput) -> None:
    plain, built = build_context(replace(inputs, relevant=())), build_context(inputs)
    tiers, others = ({tier.tier: tier for tier in context.tiers} for context in (plain, built))
    assert tiers.keys() == others.keys()
    assert [tiers[name] for name in tiers if name != "2"] == [others[name] for name in tiers if name != "2"]
    if not set(inputs.relevant) & {m.seq for m in inputs.messages}:
        assert plain.messages == built.messages


@thorough
@given(inputs)
def test_a_relevant_turn_that_finds_no_room_takes_none(inputs: ContextInput) -> None:
    built = build_context(replace(inputs, relevant=inputs.relevant[:1]))
    places = {tier.tier: {item.seq for item in tier.items} for tier in built.tiers}
    dropped = {remark.seq for remark in built.dropped if remark.reason == OVER_BUDGET}
    if "2" in places and dropped.intersection(inputs.relevant[:1]):
        plain = build_context(replace(inputs, relevant=()))
        assert plain.messages == built.messages  # a dropped turn takes no room from others


@thorough
@given(threads(), st.integers(0, 50))
def test_condensing_is_idempotent(messages: list[Message], tool_max: int) -> None:
    for message in messages:
        once = condense(message, tool_max)
        assert condense(once, tool_max) == once
