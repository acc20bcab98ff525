"""A process that continues a run reads its steps from the log."""

from uuid import UUID

from helpers.sample_events import event

from turnlog.agent.team.plans import Result
from turnlog.agent.team.recording import Journal
from turnlog.events.contracts import EventData, PlannedCall, RunPlanned, RunToolAnswered, RunToolCalled

RUN = UUID(int=7)
CALL = {"run_id": RUN, "agent": "school", "call_id": "c1"}


def journal(*steps: EventData, twice: bool = False) -> Journal:
    made = Journal("provider")
    for step in [event(data, "t", user="ann") for data in steps]:
        for _ in range(2 if twice else 1):
            made.add(step)
    return made


def test_plans_are_those_of_a_depth_in_their_order_each_once() -> None:
    plans = [
        RunPlanned(run_id=RUN, agent=name, depth=depth, plan=text)
        for name, depth, text in (
            ("desk", 0, "first"),
            ("desk", 0, "second"),
            ("school", 1, "third"),
        )
    ]
    known = journal(*plans, twice=True)
    texts = [made.text for depth, at in ((0, 0), (0, 1), (1, 0)) if (made := known.plan(depth, at))]
    assert texts == ["first", "second", "third"] and known.entry == "desk"
    assert known.plan(0, 2) is None and known.plan(1, 1) is None and known.plan(2, 0) is None


def test_a_plan_has_the_calls_that_were_recorded() -> None:
    planned = RunPlanned(
        run_id=RUN, agent="desk", calls=(PlannedCall(id="c1", name="find"),), arguments=('{"a": 1}',), tokens_in=3
    )
    made = journal(planned).plan(0, 0)
    assert made is not None and (made.tokens_in, made.finish_reason) == (3, "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in made.tool_calls] == [("c1", "find", '{"a": 1}')]


def test_recorded_results_are_reused_except_those_of_recall() -> None:
    answered = RunToolAnswered(**CALL, tool="find", result='{"b": 2}')
    recalled = RunToolAnswered(**CALL | {"call_id": "c2"}, tool="recall_memory", result="{}")
    known = journal(RunToolCalled(**CALL, tool="find"), answered, recalled)
    assert known.result(0, "c1") == Result({"b": 2}) and known.result(1, "c1") is None
    assert known.result(0, "c2") is None, "the receipt names what is found"
    assert known.was_called(0, "c1") and not known.was_called(0, "c2")
