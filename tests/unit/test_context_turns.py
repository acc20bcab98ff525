"""Tool calls and their results stay together, in whatever order the log contains them."""

from helpers.context_messages import assistant, roles, text, thinking, tool, tool_result, tool_use, user
from helpers.openai_validation import validate_openai_messages

from turnlog.agent.context.message_units import NO_RESULT, ORPHAN, Form, Turns, group
from turnlog.agent.context.pin import show
from turnlog.agent.context.tokens import counter_for
from turnlog.agent.context.wire import Wire

COUNTER = counter_for("gpt-4o")


def sent(turns: Turns) -> list[Wire]:
    shown = show(turns.units, Form(), COUNTER)
    assert validate_openai_messages(shown.messages) == []
    assert shown.tokens == sum(map(COUNTER.wire, shown.messages))
    return shown.messages


def seqs(turns: Turns) -> list[list[int]]:
    return [[message.seq for message in unit.messages] for unit in turns.units]


def test_plain_messages_are_units_of_one() -> None:
    turns = group([user(), assistant(), user()])
    assert [len(unit.messages) for unit in turns.units] == [1, 1, 1]
    assert roles(sent(turns)) == ["user", "assistant", "user"]


def test_a_call_and_all_its_results_are_one_unit() -> None:
    messages = [user(), assistant("", "a", "b"), tool("a", "A"), tool("b", "B"), assistant("done")]
    turns = group(messages)
    assert [len(unit.messages) for unit in turns.units] == [1, 3, 1]
    assert [m.get("content") for m in sent(turns)[2:4]] == ["A", "B"]


def test_results_out_of_order_follow_their_calls() -> None:
    wires = sent(group([assistant("", "a", "b"), tool("b", "B"), tool("a", "A")]))
    assert [(m["tool_call_id"], m["content"]) for m in wires[1:]] == [("a", "A"), ("b", "B")]


def test_a_late_result_moves_to_its_call() -> None:
    wires = sent(group([assistant("", "a"), user("are you there?"), tool("a", "A")]))
    assert roles(wires) == ["assistant", "tool", "user"]


def test_a_second_result_for_a_call_is_left_out_with_a_reason() -> None:
    again = tool("a", "A again")
    turns = group([assistant("", "a"), tool("a", "A"), again])
    assert [m["content"] for m in sent(turns)[1:]] == ["A"]
    assert [(remark.seq, remark.reason) for remark in turns.dropped] == [(again.seq, "second result for the same call")]


def test_a_result_without_its_call_is_shown_as_text_but_not_as_the_users_words() -> None:
    orphan = tool("gone", "the weather is fine")
    turns = group([user(), orphan])
    assert sent(turns)[1] == {"role": "assistant", "content": f"{ORPHAN}\nthe weather is fine"}
    assert [remark.seq for remark in turns.altered] == [orphan.seq]


def test_a_result_that_names_no_call_is_shown_as_text() -> None:
    assert roles(sent(group([tool(None, "x")]))) == ["assistant"]


def test_a_result_before_its_call_does_not_answer_it() -> None:
    wires = sent(group([tool("a", "early"), assistant("", "a")]))
    assert roles(wires) == ["assistant", "assistant", "tool"]
    assert wires[2]["content"] == NO_RESULT


def test_a_call_without_result_gets_a_placeholder() -> None:
    caller = assistant("", "a", "b")
    turns = group([caller, tool("b", "B"), user()])
    assert [m["content"] for m in sent(turns)[1:3]] == [NO_RESULT, "B"]
    assert [remark.seq for remark in turns.altered] == [caller.seq]


def test_ids_that_are_used_again_belong_to_the_newest_call() -> None:
    messages = [assistant("", "call_0"), tool("call_0", "1"), assistant("", "call_0"), tool("call_0", "2")]
    wires = sent(group(messages))
    assert [m["content"] for m in wires if m["role"] == "tool"] == ["1", "2"]


def test_results_inside_a_user_message_join_the_call_with_the_users_words() -> None:
    messages = [assistant([tool_use("a")]), user([tool_result("a", "A"), text("thanks, and now?")])]
    turns = group(messages)
    assert len(turns.units) == 1
    assert roles(sent(turns)) == ["assistant", "tool", "user"]


def test_a_users_words_never_move_back_in_time_with_a_late_result() -> None:
    messages = [assistant([tool_use("a")]), user("wait"), user([tool_result("a", "A"), text("go on")])]
    wires = sent(group(messages))
    assert roles(wires) == ["assistant", "tool", "user", "assistant", "user"]
    assert [w["content"] for w in wires][-1] == "go on"


def test_a_tool_that_runs_at_the_provider_stays_in_one_message() -> None:
    message = assistant([text("I search"), tool_use("a"), tool_result("a", "A"), text("It is A")])
    turns = group([message])
    assert seqs(turns) == [[message.seq]]
    assert [w["content"] for w in sent(turns)] == ["I search", "A", "It is A"]


def test_a_message_of_thinking_alone_is_left_out_with_a_reason() -> None:
    message = assistant([thinking("hm")])
    turns = group([message])
    assert turns.units == []
    assert [remark.seq for remark in turns.dropped] == [message.seq]


def test_one_user_message_with_results_for_two_calls_is_in_one_unit() -> None:
    answers = user([tool_result("a", "A"), tool_result("b", "B")])
    turns = group([assistant([tool_use("a")]), assistant([tool_use("b")]), answers])
    assert sum(answers.seq in unit for unit in seqs(turns)) == 1
    assert any(ORPHAN in str(wire["content"]) for wire in sent(turns))
