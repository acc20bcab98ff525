"""Lists runs of agents, and shows the steps of one run."""

import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound
from turnlog.events.subjects import check_place
from turnlog.projectors.models.runs.lookup import AgentRun, RunStep, agent_runs_of, steps_of

READS = ("agent_runs",)
_DIGITS = re.compile(r"[0-9a-f]{8,32}")


@dataclass(frozen=True, slots=True)
class RunShown:
    """A run with its steps in the order of the log."""

    run: AgentRun
    steps: list[RunStep]


async def list_runs(
    runtime: Runtime,
    tenant: str,
    user: str | None = None,
    thread: str | None = None,
    limit: int = 50,
    after: tuple[datetime, UUID] | None = None,
) -> list[AgentRun]:
    """Returns runs of agents, newest first: of one user or all users, in one conversation or all.

    after: start and id of the run after which the list continues. Raises InvalidToken.
    """
    check_place(tenant, thread, user)
    await runtime.wait_until_projected(names=READS)
    async with runtime.pool.connection() as conn:
        return await agent_runs_of(conn, tenant, user, thread, after=after, limit=limit)


async def show_run(runtime: Runtime, tenant: str, run: UUID | str, user: str | None = None) -> RunShown:
    """Returns a run and its steps. run: its id, or at least the first eight digits of it. user: the user it must belong
    to; None for any. Raises NotFound, also if several ids have this beginning, and InvalidToken."""
    check_place(tenant, user=user)
    digits = str(run).lower().replace("-", "")
    if not _DIGITS.fullmatch(digits):
        raise NotFound(f"{str(run)[:80]!r} is not the id of a run; `turnlog runs` lists them")
    await runtime.wait_until_projected(names=READS)
    async with runtime.pool.connection() as conn:
        first, last = (UUID(digits.ljust(32, fill)) for fill in "0f")
        runs = await agent_runs_of(conn, tenant, user, ids=(first, last), limit=2)
        if len(runs) != 1:
            why = f"several runs have ids that begin with {run}" if runs else f"there is no run {run}"
            raise NotFound(f"{why}; `turnlog runs` lists them")
        return RunShown(runs[0], await steps_of(conn, tenant, runs[0].thread, runs[0].run_id))
