"""runs: what agents planned, called and handed over."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.agent.team import runs as runs_of_agents
from turnlog.consumers.cli.console import Result, rows, spent_text
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.runner import Runtime, command

if TYPE_CHECKING:
    from turnlog.agent.team.runs import RunShown
    from turnlog.projectors.models.runs.lookup import AgentRun, RunStep

app = commands()
SHOWN_CHARS = 200


@command(app, projecting=False)
async def runs(
    rt: Runtime,
    run: Annotated[str | None, typer.Argument(help="The id of a run, to see its steps.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None,
    thread: Annotated[str | None, typer.Option(help="Only this conversation's.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=1_000)] = 20,
) -> Result:
    """List runs of agents, newest first; with an id, its plan, tools, delegations, time and cost."""
    if run is not None:
        shown = await runs_of_agents.show_run(rt, rt.settings.tenant, run, user)
        return Result(shown, _steps(shown))
    found = await runs_of_agents.list_runs(rt, rt.settings.tenant, user, thread, limit)
    return rows(found, _line, "no agent has planned or called a tool yet")


def _line(run: "AgentRun") -> str:
    took = "-" if run.took_ms is None else f"{run.took_ms / 1000:.1f} s"
    state = f"failed: {run.code}" if run.code else run.status
    spent = _spent(run)
    return f"{run.run_id}  {run.started_at:%Y-%m-%d %H:%M}  {run.agent}  {state}  {took}  {spent}  {run.thread}"


def _spent(spent: "AgentRun | RunStep") -> str:
    return f"{spent.tokens_in + spent.tokens_out:,} tokens, {spent_text(spent.cost_usd, spent.price_known)}"


def _steps(shown: "RunShown") -> Iterator[str]:
    yield _line(shown.run)
    for step in shown.steps:
        took = f"  {step.latency_ms:,} ms" if step.latency_ms is not None else ""
        spent = f"  {_spent(step)}" if step.tokens_in + step.tokens_out else ""
        failed = "  failed" if step.is_error else ""
        named = f" {step.name}" if step.name else ""
        yield f"{'  ' * step.depth}{step.agent}  {step.kind}{named}{took}{spent}{failed}"
        yield from (f"{'  ' * step.depth}    {line}" for line in _texts(step))


def _texts(step: "RunStep") -> Iterator[str]:
    text = " ".join(step.text.split())
    if text:
        yield text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
    for call in step.calls or ():
        after = f"  after {', '.join(call['after'])}" if call["after"] else ""
        yield f"{call['id']}  {call['name']} {call['arguments']}{after}"
