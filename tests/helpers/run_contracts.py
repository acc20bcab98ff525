"""Contains a sample of each event of a team's run."""

from helpers.sample_events import RUN

from turnlog.events.contracts import (
    EventData,
    PlannedCall,
    RunDelegated,
    RunPlanned,
    RunSolved,
    RunToolAnswered,
    RunToolCalled,
)

RUN_CONTRACTS: tuple[EventData, ...] = (
    RunPlanned(
        run_id=RUN,
        agent="school",
        depth=1,
        routed_by="router",
        plan="Look at the profile, then search.",
        calls=(PlannedCall(id="c1", name="get_profile"), PlannedCall(id="c2", name="search_schools", after=("c1",))),
        arguments=("{}", '{"major": "music"}'),
        model="m",
        tokens_in=120,
        tokens_out=30,
        cost_usd=0.001,
        price_known=True,
        latency_ms=812.5,
    ),
    RunToolCalled(run_id=RUN, agent="school", depth=1, call_id="c1", tool="get_profile", arguments="{}"),
    RunToolAnswered(
        run_id=RUN,
        agent="school",
        depth=1,
        call_id="c1",
        tool="get_profile",
        result="GPA 3.8",
        is_error=True,
        tries=2,
        latency_ms=12.5,
    ),
    RunDelegated(run_id=RUN, from_agent="orchestrator", to_agent="school", depth=1, task="Find schools"),
    RunSolved(
        run_id=RUN,
        agent="school",
        agents=("orchestrator", "school"),
        tools=("get_profile",),
        code="model-timeout",
        model="m",
        tokens_in=300,
        tokens_out=90,
        cost_usd=0.002,
        price_known=False,
        latency_ms=1_500.5,
        routed=True,
        milliseconds={"PLAN": 900, "EXECUTE": 100, "SOLVE": 500},
        suggestions=("Which schools fit?",),
    ),
)
