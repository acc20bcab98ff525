"""agent_runs: runs of agents, and their steps in the order of the log."""

from collections.abc import Sequence

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB, UUID

from turnlog.events.contracts import (
    REMOVALS,
    Recorded,
    RunDelegated,
    RunPlanned,
    RunSolved,
    RunToolAnswered,
    RunToolCalled,
)
from turnlog.projectors.engine.changes import Change, Insert, Row, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz

agent_runs = thread_table(
    "agent_runs",
    sa.Column("run_id", UUID(as_uuid=True), primary_key=True, comment="id of the event that requested the answer"),
    sa.Column("user_id", sa.Text),
    sa.Column("agent", sa.Text, nullable=False, comment="the agent to which the question was handed last"),
    sa.Column("status", sa.Text, nullable=False, comment="running, solved or failed"),
    sa.Column("code", sa.Text, comment="code of the error; NULL if there is none"),
    sa.Column("started_at", timestamptz(), nullable=False),
    sa.Column("ended_at", timestamptz()),
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("cost_micro_usd", sa.BigInteger, nullable=False),
    sa.Column("first_seq", sa.BigInteger, nullable=False, comment="sequence of the first step"),
)
agent_run_steps = thread_table(
    "agent_run_steps",
    sa.Column("run_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False, comment="plan, call, result, delegation or end"),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("depth", sa.SmallInteger, nullable=False),
    sa.Column("name", sa.Text, comment="name of the tool, or of the agent that takes over"),
    sa.Column("call_id", sa.Text),
    sa.Column("text", sa.Text, nullable=False, comment="the plan, arguments, result, task or code of the error"),
    sa.Column("calls", JSONB, comment="calls of a plan: [{id, name, arguments, after}]"),
    sa.Column("is_error", sa.Boolean, nullable=False),
    sa.Column("latency_ms", sa.Integer),
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("cost_micro_usd", sa.BigInteger, nullable=False),
    sa.Column("at", timestamptz(), nullable=False),
    sa.Column("price_known", sa.Boolean, comment="whether the price was known; NULL if an older event does not say"),
)
sa.Index("agent_runs_user", agent_runs.c.tenant, agent_runs.c.user_id, agent_runs.c.started_at)
_RUN = tuple(column.name for column in agent_runs.columns)
_STEP = tuple(column.name for column in agent_run_steps.columns)
_SUMS = tuple((name, f"t.{name} + excluded.{name}") for name in ("tokens_in", "tokens_out", "cost_micro_usd"))
_GOES_ON = (("agent", "excluded.agent"), *_SUMS)
_ENDS = (*((name, f"excluded.{name}") for name in ("agent", "status", "code", "ended_at")), *_SUMS)


def project(batch: Sequence[Recorded]) -> list[Change]:
    """Returns the changes of a batch. A run's first plan creates its row, later plans and delegations update it, and
    its end completes it; tool calls and their results do not change the row."""
    steps = [(recorded, _step(recorded)) for recorded in batch]
    runs = [
        _run(recorded, step)
        for recorded, step in steps
        if not isinstance(recorded.event.data, RunToolCalled | RunToolAnswered)
    ]
    return [*runs, Insert(agent_run_steps, _STEP, [tuple(step[name] for name in _STEP) for _, step in steps])]


def _run(recorded: Recorded, step: dict[str, object]) -> Upsert:
    event, data = recorded.event, recorded.event.data
    ended = isinstance(data, RunSolved)
    status = ("failed" if data.code else "solved") if isinstance(data, RunSolved) else "running"
    code = data.code if isinstance(data, RunSolved) else None
    agent = data.to_agent if isinstance(data, RunDelegated) else step["agent"]
    spent = (step["tokens_in"], step["tokens_out"], step["cost_micro_usd"])
    row: Row = (
        *(event.tenant, event.thread, step["run_id"], event.user, agent, status, code),
        *(event.time, event.time if ended else None, *spent, recorded.seq),
    )
    return Upsert(agent_runs, _RUN, [row], _ENDS if ended else _GOES_ON)


def _step(recorded: Recorded) -> dict[str, object]:
    event, data = recorded.event, recorded.event.data
    about: dict[str, object] = dict.fromkeys(_STEP) | {
        "tenant": event.tenant,
        "thread_id": event.thread,
        "seq": recorded.seq,
        "at": event.time,
        "text": "",
        "depth": 0,
        "is_error": False,
        "tokens_in": 0,
        "tokens_out": 0,
        "cost_micro_usd": 0,
    }
    match data:
        case RunPlanned():
            arguments = data.arguments or ("",) * len(data.calls)
            calls = [
                {**call.model_dump(), "arguments": text} for call, text in zip(data.calls, arguments, strict=False)
            ]
            own = {"kind": "plan", "text": data.plan, "calls": to_json(calls).decode(), **_spent(data)}
        case RunToolCalled():
            own = {"kind": "call", "name": data.tool, "call_id": data.call_id, "text": data.arguments}
        case RunToolAnswered():
            own = {"kind": "result", "name": data.tool, "call_id": data.call_id, "text": data.result}
            own |= {"is_error": data.is_error, "latency_ms": round(data.latency_ms)}
        case RunDelegated():
            own = {"kind": "delegation", "agent": data.from_agent, "name": data.to_agent, "text": data.task}
        case RunSolved():
            own = {"kind": "end", "text": data.code or "", "is_error": data.code is not None, **_spent(data)}
        case _:
            raise TypeError(f"{event.type} is not a step of a run")
    agent = {} if isinstance(data, RunDelegated) else {"agent": data.agent}
    depth = {} if isinstance(data, RunSolved) else {"depth": data.depth}
    return about | {"run_id": data.run_id} | agent | depth | own


def _spent(data: RunPlanned | RunSolved) -> dict[str, object]:
    return {
        "tokens_in": data.tokens_in,
        "tokens_out": data.tokens_out,
        "cost_micro_usd": round(data.cost_usd * 1_000_000),
        "latency_ms": round(data.latency_ms),
        "price_known": data.price_known,
    }


STEPS = frozenset({"run_planned", "run_tool_called", "run_tool_answered", "run_delegated", "run_solved"})
AGENT_RUNS = Projection("agent_runs", 1, (agent_runs, agent_run_steps), REMOVALS | STEPS, project)
