"""The read model `agent_runs` has a row for each run of an agent, with its steps."""

from uuid import UUID

import pytest
from helpers.projection_spec import Spec
from helpers.sample_events import event

from turnlog.events.contracts import (
    Event,
    EventData,
    PlannedCall,
    RunDelegated,
    RunPlanned,
    RunSolved,
    RunToolAnswered,
    RunToolCalled,
    ThreadDeleted,
)
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.runs.lookup import agent_runs_of, steps_of
from turnlog.projectors.models.runs.projection import AGENT_RUNS

RUN = UUID(int=7)
RUNS = "SELECT agent, status, code, tokens_in, tokens_out, cost_micro_usd, ended_at IS NULL FROM agent_runs"
CALL = {"run_id": RUN, "agent": "school", "depth": 1, "call_id": "c1", "tool": "get_profile"}


def step(data: EventData, thread: str = "t", user: str = "ann") -> Event:
    return event(data, thread, user=user)


PLANNED = RunPlanned(
    run_id=RUN,
    agent="school",
    depth=1,
    plan="先看档案",
    calls=(PlannedCall(id="c1", name="get_profile"),),
    arguments=('{"a": 1}',),
    tokens_in=10,
    tokens_out=5,
    cost_usd=0.1,
    latency_ms=20.4,
)
WHOLE = [
    step(RunPlanned(run_id=RUN, agent="orchestrator", tokens_in=1)),
    step(RunDelegated(run_id=RUN, from_agent="orchestrator", to_agent="school", depth=1, task="find schools")),
    step(PLANNED),
    step(RunToolCalled(**CALL, arguments='{"a": 1}')),
    step(RunToolAnswered(**CALL, result="GPA 3.8", latency_ms=7)),
    step(RunSolved(run_id=RUN, agent="school", tokens_in=100, tokens_out=50, cost_usd=0.2)),
]


async def test_a_run_sums_the_usage_of_its_steps_and_names_the_last_agent(db: Connection) -> None:
    await Spec(db, AGENT_RUNS).given(*WHOLE[:3]).then(RUNS, [("school", "running", None, 11, 5, 100_000, True)])
    await Spec(db, AGENT_RUNS).given(*WHOLE).then(RUNS, [("school", "solved", None, 111, 55, 300_000, False)])


async def test_steps_are_kept_in_the_order_of_the_log(db: Connection) -> None:
    await (
        Spec(db, AGENT_RUNS)
        .given(*WHOLE[:3])
        .when(*WHOLE[3:])
        .then(
            "SELECT kind, agent, depth, name, call_id, text, is_error, latency_ms FROM agent_run_steps ORDER BY seq",
            [
                ("plan", "orchestrator", 0, None, None, "", False, 0),
                ("delegation", "orchestrator", 1, "school", None, "find schools", False, None),
                ("plan", "school", 1, None, None, "先看档案", False, 20),
                ("call", "school", 1, "get_profile", "c1", '{"a": 1}', False, None),
                ("result", "school", 1, "get_profile", "c1", "GPA 3.8", False, 7),
                ("end", "school", 0, None, None, "", False, 0),
            ],
        )
    )
    (run,) = await agent_runs_of(db, "default", "ann")
    steps = await steps_of(db, "default", run.thread, run.run_id)
    assert steps[2].calls == [{"id": "c1", "name": "get_profile", "arguments": '{"a": 1}', "after": []}]
    assert await agent_runs_of(db, "default", "bob") == await agent_runs_of(db, "acme") == []


async def test_the_duration_of_a_run_includes_its_first_plan(db: Connection) -> None:
    """The first step is recorded only when it has ended."""
    plan = RunPlanned(run_id=RUN, agent="school", latency_ms=12_000)
    spec = Spec(db, AGENT_RUNS).given(step(plan), step(RunSolved(run_id=RUN, agent="school", latency_ms=12_500)))
    await spec.then("SELECT count(*) FROM agent_runs", [(1,)])
    (run,) = await agent_runs_of(db, "default")
    assert run.ended_at and run.took_ms is not None
    assert run.took_ms == pytest.approx(12_000 + 1_000 * (run.ended_at - run.started_at).total_seconds(), abs=1)


async def test_a_running_run_has_no_duration(db: Connection) -> None:
    plan = RunPlanned(run_id=RUN, agent="school", latency_ms=12_000)
    await Spec(db, AGENT_RUNS).given(step(plan)).then("SELECT count(*) FROM agent_runs", [(1,)])
    (run,) = await agent_runs_of(db, "default")
    assert (run.status, run.ended_at, run.took_ms) == ("running", None, None)


async def test_a_zero_cost_is_distinguished_from_an_unknown_price(db: Connection) -> None:
    runs = {price: UUID(int=10 + at) for at, price in enumerate((True, False, None))}
    await (
        Spec(db, AGENT_RUNS)
        .given(
            *(
                step(RunPlanned(run_id=run, agent="school", tokens_in=1, price_known=price), f"t{run.int}")
                for price, run in runs.items()
            ),
            step(RunSolved(run_id=runs[True], agent="school", tokens_in=1, cost_usd=1e-9, price_known=True), "t10"),
        )
        .then("SELECT count(*), sum(cost_micro_usd)::int FROM agent_runs", [(3, 0)])
    )
    known = {run.run_id: run.price_known for run in await agent_runs_of(db, "default")}
    assert known == {runs[True]: True, runs[False]: False, runs[None]: False}
    for price, run in runs.items():
        steps = await steps_of(db, "default", f"t{run.int}", run)
        assert {step.price_known for step in steps} == {price is True}


async def test_a_failed_run_says_why(db: Connection) -> None:
    failed = step(RunSolved(run_id=RUN, agent="school", code="model-timeout"))
    await (
        Spec(db, AGENT_RUNS)
        .given(WHOLE[0])
        .when(failed)
        .then(RUNS, [("school", "failed", "model-timeout", 1, 0, 0, False)])
    )


async def test_runs_of_a_deleted_conversation_are_dropped(db: Connection) -> None:
    other = step(PLANNED.model_copy(update={"run_id": UUID(int=8)}), "other", "bob")
    await (
        Spec(db, AGENT_RUNS)
        .given(*WHOLE, other)
        .when(event(ThreadDeleted(), "t"))
        .then("SELECT thread_id FROM agent_runs UNION ALL SELECT thread_id FROM agent_run_steps", [("other",)] * 2)
    )
