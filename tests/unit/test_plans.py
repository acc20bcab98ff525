"""Plans of tool calls are read from a model's answer, ordered, filled with results, and delegated to another agent."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.team.plans import (
    CUT,
    MAX_STEPS,
    Delegation,
    LeftOut,
    Plan,
    Result,
    Step,
    filled,
    fitted,
    handed_on,
    levels,
    read_plan,
    with_own_ids,
)
from turnlog.agent.team.teams import Agent, Team, bundled_team
from turnlog.events.contracts import ToolCall

TOOLS = ("get_profile", "search_schools", "compare_schools")


def call(tool: str, arguments: object = None, id_: str = "") -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(id=id_ or f"call_{tool}", name=tool, arguments=text)


def step(number: int, **arguments: Any) -> Step:
    return Step(number, f"tool_{number}", arguments, f"call_{number}")


def numbers(plan: Plan) -> list[list[int]]:
    return [[known.number for known in group] for group in levels(plan.steps)]


def test_text_without_calls_is_the_answer() -> None:
    plan = read_plan("Hello!", [], TOOLS)
    assert plan.is_answer and plan.thought == "Hello!"


def test_calls_become_steps_in_their_order_with_the_text_as_thought() -> None:
    plan = read_plan("First your profile.", [call("get_profile"), call("search_schools", {"query": "art"})])
    assert plan.thought == "First your profile." and not plan.is_answer
    assert plan.steps == (
        Step(1, "get_profile", {}, "call_get_profile"),
        Step(2, "search_schools", {"query": "art"}, "call_search_schools"),
    )


def test_calls_without_ids_get_ids() -> None:
    plan = read_plan("", [ToolCall(id=id_, name=f"tool_{at}") for at, id_ in enumerate(("", "x", "x", ""))])
    assert [known.call_id for known in plan.steps] == ["call_1", "x", "call_3", "call_4"]


def test_a_call_that_delegates_leaves_out_all_others() -> None:
    wanted = {"agent_type": "Essay", "task_description": "polish it", "context": {"essay": 3}}
    plan = read_plan("", [call("get_profile"), call("delegate_to_agent", wanted)])
    assert plan.delegation == Delegation("essay", "polish it", {"essay": 3})
    assert plan.steps == () and not plan.is_answer


@pytest.mark.parametrize("wanted", [{}, {"agent_type": "essay"}, {"agent_type": 3, "task_description": "x"}, "[]", "{"])
def test_a_delegation_without_agent_or_task_is_an_ordinary_step(wanted: object) -> None:
    plan = read_plan("", [call("delegate_to_agent", wanted)])
    assert plan.delegation is None and [known.tool for known in plan.steps] == ["delegate_to_agent"]


def test_of_calls_with_the_same_arguments_the_first_is_kept() -> None:
    same, other = [call("get_profile", {"a": 1, "b": 2}), call("get_profile", {"b": 2, "a": 1})], {"a": 2}
    plan = read_plan("", [*same, call("get_profile", other), call("search_schools")])
    assert [(known.number, known.arguments) for known in plan.steps] == [(1, {"a": 1, "b": 2}), (3, other), (4, {})]
    assert plan.left_out == (LeftOut("get_profile", "repeated"),)


def test_every_call_gets_a_unique_id() -> None:
    calls = [ToolCall(id=id_, name="get_profile", arguments="{}") for id_ in ("call_2", "", "c", "c", "x")]
    named = with_own_ids(calls, {"x"})
    ids = [known.id for known in named]
    assert (ids[0], ids[2]) == ("call_2", "c") and len({*ids, "x"}) == 6
    assert with_own_ids(named) == named


def test_a_later_plan_may_name_results_of_an_earlier_one() -> None:
    plan = read_plan("", [call("search_schools", {"near": "#E2.city"})], first=3)
    assert [step.number for step in plan.steps] == [3]
    (group,) = levels(plan.steps, before={1, 2})
    assert filled(group[0], {2: Result({"city": "Bath"})}).arguments == {"near": "Bath"}


def test_a_repeated_call_has_the_result_of_the_earlier_one() -> None:
    same = [call("get_profile"), call("get_profile"), call("search_schools", {"near": "#E2.city"})]
    assert read_plan("", same).steps[1].arguments == {"near": "#E1.city"}
    missing = read_plan("", [call("search_schools", {"near": "#E2.city"})])
    assert levels(missing.steps)[0][0].error == "the arguments name the result of #E2, which the plan does not have"


def test_a_plan_has_at_most_sixteen_steps() -> None:
    plan = read_plan("", [call(f"tool_{at}") for at in range(MAX_STEPS + 2)])
    assert len(plan.steps) == MAX_STEPS
    assert plan.left_out == (LeftOut("tool_16", "too many"), LeftOut("tool_17", "too many"))


@pytest.mark.parametrize("arguments", ["{", "[]", "3", "null", '"text"', "[" * 2000, '{"a":' * 40 + "1" + "}" * 40])
def test_arguments_that_are_not_a_json_object_make_a_failed_step(arguments: str) -> None:
    plan = read_plan("", [call("get_profile", arguments), call("search_schools")])
    assert plan.steps[0].error is not None and plan.steps[0].error.startswith("the arguments are not a JSON object")
    assert plan.steps[1].error is None


def test_a_plan_may_be_written_as_json_text() -> None:
    written = {
        "thought": "t",
        "steps": [{"tool": "get_profile"}, {"tool": "search_schools", "arguments": {"q": "#E1"}}],
    }
    for text in (json.dumps(written), f"Here:\n```json\n{json.dumps(written)}\n```\n"):
        plan = read_plan(text, [], TOOLS)
        assert plan.thought == "t"
        assert plan.steps == (
            Step(1, "get_profile", {}, "plan_1"),
            Step(2, "search_schools", {"q": "#E1"}, "plan_2"),
        )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"steps": 3}',
        '{"steps": [3]}',
        '{"steps": [{"tool": 3}]}',
        '{"steps": [{"tool": "hammer"}]}',
        "```\nx```",
    ],
)
def test_other_json_is_an_answer(text: str) -> None:
    plan = read_plan(text, [], TOOLS)
    assert plan.is_answer and plan.thought == text


def test_a_json_plan_can_delegate_and_can_have_no_steps() -> None:
    wanted = {"tool": "delegate_to_agent", "arguments": {"agent_type": "school", "task_description": "x"}}
    plan = read_plan(json.dumps({"steps": [wanted]}), [], (*TOOLS, "delegate_to_agent"))
    assert plan.delegation == Delegation("school", "x", {})
    assert read_plan('{"thought": "Nothing to do.", "steps": []}', [], TOOLS) == Plan("Nothing to do.")


def test_steps_that_do_not_depend_on_each_other_are_one_group() -> None:
    plan = Plan("", (step(1), step(2, a="#E1"), step(3), step(4, a=["#E2.x", "and #E3"]), step(5, a={"b": "#E1"})))
    assert numbers(plan) == [[1, 3], [2, 5], [4]]


def test_a_step_may_name_one_that_comes_later() -> None:
    assert numbers(Plan("", (step(1, a="#E2"), step(2)))) == [[2], [1]]


def test_steps_that_wait_for_each_other_fail_and_the_others_run() -> None:
    steps = (step(1, a="#E2"), step(2, a="#E1"), step(3), step(4, a="#E4"))
    failed = {known.number: known.error for group in levels(steps) for known in group if known.error}
    assert set(failed) == {1, 2, 4}
    assert failed[1] == "the steps #E1, #E2, #E4 wait for each other"


def test_references_are_filled_with_values_and_texts() -> None:
    results = {1: Result({"name": "Ann", "schools": [{"id": "s1"}, {"id": "s2"}]}), 12: Result("late")}
    wanted = step(3, whole="#E1.schools", one="#E1.schools[1].id", text="of #E1.name and #E12", list=["#E12", 4, None])
    assert filled(wanted, results).arguments == {
        "whole": [{"id": "s1"}, {"id": "s2"}],
        "one": "s2",
        "text": "of Ann and late",
        "list": ["late", 4, None],
    }
    assert filled(step(3, text="all: #E1.schools"), results).arguments == {"text": 'all: [{"id": "s1"}, {"id": "s2"}]'}


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("#E1.age", "the result of #E1 has no age"),
        ("#E1.list[3].id", r"the result of #E1 has no list[3].id"),
        ("#E1.name.first", "the result of #E1 has no name.first"),
        ("#E2", "it needs the result of #E2, which failed"),
        ("#E9", "#E9 has no result"),
    ],
)
def test_a_reference_that_cannot_be_filled_is_the_error_of_the_step(reference: str, error: str) -> None:
    results = {1: Result({"name": "Ann", "list": []}), 2: Result("timed out", is_error=True)}
    assert filled(step(3, a=f"see {reference}"), results).error == error


@pytest.mark.parametrize("text", ["#E", "#E0", "#e1", "E1", "# E1"])
def test_other_words_are_not_references(text: str) -> None:
    assert filled(step(1, a=text), {}).arguments == {"a": text}


def test_a_result_is_not_read_for_references_again() -> None:
    results = {1: Result("#E2 and #E1"), 2: Result("secret")}
    assert filled(step(3, a="#E1", b="x #E1"), results).arguments == {"a": "#E2 and #E1", "b": "x #E2 and #E1"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["#E1", "x #E2.a", "#E3[0]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), JSON, max_size=3)
STEPS = st.lists(ARGUMENTS, max_size=8).map(
    lambda known: tuple(Step(at, f"t{at}", arguments, f"c{at}") for at, arguments in enumerate(known, 1))
)


@given(STEPS)
def test_every_step_is_in_one_group_after_all_that_it_needs(steps: tuple[Step, ...]) -> None:
    groups, done = levels(steps), set[int]()
    assert sorted(known.number for group in groups for known in group) == [known.number for known in steps]
    for group in groups:
        assert all(known.error is not None or known.needs <= done for known in group)
        done |= {known.number for known in group}


@given(STEPS, JSON)
def test_a_filled_step_has_all_arguments_or_an_error(steps: tuple[Step, ...], value: Any) -> None:
    results = {known.number: Result(value) for known in steps}
    for known in steps:
        done = filled(known, results)
        assert done.error is not None or set(done.arguments) == set(known.arguments)
        if not known.needs:
            assert done == known


@given(st.text(), st.lists(st.tuples(st.sampled_from(TOOLS), st.text() | ARGUMENTS.map(json.dumps))))
def test_any_answer_of_a_model_is_a_plan(text: str, wanted: list[tuple[str, str]]) -> None:
    plan = read_plan(text, [ToolCall(id=str(at), name=tool, arguments=a) for at, (tool, a) in enumerate(wanted)], TOOLS)
    made = [(known.tool, json.dumps(known.arguments), known.error) for known in plan.steps]
    assert len(made) == len(set(made)) and {name for name, *_ in made} <= {tool for tool, _ in wanted}
    assert len(plan.left_out) == len(wanted) - len(made)


@given(ARGUMENTS)
def test_a_plan_written_as_json_is_read_as_the_same_calls(arguments: Mapping[str, Any]) -> None:
    written = read_plan(json.dumps({"steps": [{"tool": "get_profile", "arguments": arguments}]}), [], TOOLS)
    called = read_plan("", [call("get_profile", json.dumps(arguments))])
    assert [known.arguments for known in written.steps] == [known.arguments for known in called.steps]


def hand(chain: list[str], target: str, team: Team | None = None) -> Agent | str:
    return handed_on(team or bundled_team(), chain, Delegation(target, "task", {}))


def test_the_entry_agent_hands_on_and_a_specialist_hands_back() -> None:
    team = bundled_team()
    assert hand(["orchestrator"], "essay") is team.agents["essay"]
    assert hand(["orchestrator", "essay"], "orchestrator") is team.agents["orchestrator"]
    assert hand(["orchestrator", "essay", "orchestrator"], "school") is team.agents["school"]


@pytest.mark.parametrize(
    ("chain", "target", "why"),
    [
        (["orchestrator"], "painter", "orchestrator cannot hand over to 'painter'; it can to essay, school"),
        (["essay"], "school", "essay cannot hand over to 'school'; it can to orchestrator"),
        (["orchestrator", "essay", "orchestrator", "school"], "orchestrator", "was handed on 3 times already"),
        (["orchestrator", "essay", "orchestrator"], "essay", "orchestrator has already handed this question to essay"),
    ],
)
def test_loops_and_long_chains_are_refused(chain: list[str], target: str, why: str) -> None:
    refused = hand(chain, target)
    assert isinstance(refused, str) and why in refused


def test_no_question_is_delegated_to_a_disabled_agent() -> None:
    team = bundled_team()
    essay = team.agents["essay"].model_copy(update={"enabled": False})
    team = team.model_copy(update={"agents": {**team.agents, "essay": essay}})
    assert hand(["orchestrator"], "essay", team) == "essay is switched off"


@given(st.lists(st.sampled_from(sorted(bundled_team().agents)), max_size=12))
def test_no_chain_of_delegations_is_longer_than_the_depth(targets: list[str]) -> None:
    team, chain = bundled_team(), ["orchestrator"]
    for target in targets:
        if isinstance(hand(chain, target), Agent):
            chain.append(target)
    assert len(chain) - 1 <= team.depth
    pairs = list(itertools.pairwise(chain))
    assert len(pairs) == len(set(pairs))


def test_the_longest_results_are_cut_first_if_all_together_are_too_long() -> None:
    sizes = (10, 500, 3, 90, 400)
    told = [{"role": "tool", "tool_call_id": str(at), "content": "x" * size} for at, size in enumerate(sizes)]
    messages = [{"role": "assistant", "content": "y" * 900}, *told]
    assert fitted(messages, 1003) == messages
    cut = fitted(messages, 403)
    assert [len(message["content"].removesuffix(CUT)) for message in cut] == [900, 10, 150, 3, 90, 150]
    assert [message["content"].endswith(CUT) for message in cut] == [False, False, True, False, False, True]
    assert fitted([], 0) == []
