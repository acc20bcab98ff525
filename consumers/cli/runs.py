"""The command `runs`: what agents planned, called and handed over."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnlog.agent.team import runs as runs_of_agents
from turnlog.consumers.cli.console import Result, spent_text
from turnlog.consumers.cli.options import commands
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import short_ids, table

if TYPE_CHECKING:
    from turnlog.agent.team.runs import RunShown
    from turnlog.projectors.models.runs.lookup import AgentRun, RunStep

app = commands()
SHOWN_CHARS = 200
TIME_CHARS = 13  # an id begins with its time: the first 8 characters stay the same for a minute


@command(app, projecting=False)
async def runs(
    rt: Runtime,
    run: Annotated[str | None, typer.Argument(help="Id of a run, or its beginning, to show its steps.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's.")] = None,
    thread: Annotated[str | None, typer.Option(help="Only this conversation's.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of runs.", min=1, max=1_000)] = 20,
) -> Result:
    """List runs of agents, newest first; with an id, its plan, tools, delegations, time and cost."""
    if run is not None:
        shown = await runs_of_agents.show_run(rt, rt.settings.tenant, run, user)
        return Result(shown, _steps(shown))
    listed = await runs_of_agents.list_runs(rt, rt.settings.tenant, user, thread, limit)
    ids = short_ids((run.run_id for run in listed), TIME_CHARS)
    return table(listed, {"RUN": lambda run: ids[run.run_id], **_COLUMNS}, "no agent has planned or called a tool yet")


def _spent(spent: "AgentRun | RunStep") -> str:
    return f"{spent.tokens_in + spent.tokens_out:,} tokens, {spent_text(spent.cost_usd, spent.price_known)}"


_COLUMNS: dict[str, Callable[["AgentRun"], Any]] = {
    "STARTED": lambda run: f"{run.started_at:%F %H:%M}",
    "AGENT": lambda run: run.agent,
    "STATE": lambda run: f"failed: {run.code}" if run.code else run.status,
    "TIME": lambda run: "-" if run.took_ms is None else f"{run.took_ms / 1000:.1f} s",
    "SPENT": _spent,
    "THREAD": lambda run: run.thread,
}


def _steps(shown: "RunShown") -> Iterator[str]:
    yield "  ".join([str(shown.run.run_id), *(str(of(shown.run)) for of in _COLUMNS.values())])
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
