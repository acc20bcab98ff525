"""Agents, and their runs: how the caller's questions were answered, step by step."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict

from turnlog.agent.team import agents, runs
from turnlog.agent.team.runs import RunShown
from turnlog.consumers.api.pages import Cursor, Limit, Page, moment, page_of, place_of
from turnlog.consumers.api.principal import OfUser, Reader
from turnlog.projectors.models.operations.agents import AgentRow
from turnlog.projectors.models.runs.lookup import AgentRun

router = APIRouter(prefix="/api", tags=["runs"])
RunId = Annotated[str, Path(min_length=1, max_length=255, description="The run's id.")]


class AgentName(BaseModel):
    """An agent that can be asked. type: its name in runs and turns. enabled: false if it refuses questions."""

    model_config = ConfigDict(from_attributes=True)

    type: str
    name: str
    enabled: bool


@router.get("/agents", response_model=list[AgentName])
async def name_agents(caller: Reader) -> list[AgentRow]:
    """Lists the agents of the tenant by type, with their names."""
    return await agents.list_agents(caller.runtime, caller.tenant)


@router.get("/runs")
async def list_runs(
    caller: Reader,
    thread: Annotated[str | None, Query(max_length=255, description="Only runs of this conversation.")] = None,
    user: OfUser = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AgentRun]:
    """Lists runs, newest first."""
    after = place_of(cursor, datetime, UUID)
    listed = await runs.list_runs(*caller.person_named(user), thread, limit + 1, after)
    return page_of(listed, limit, lambda run: (moment(run.started_at), str(run.run_id)))


@router.get("/runs/{run}")
async def show_run(run: RunId, caller: Reader, user: OfUser = None) -> RunShown:
    """Returns a run with its plans, tool calls, results and delegations, in the order of the log."""
    runtime, tenant, whose = caller.person_named(user)
    return await runs.show_run(runtime, tenant, run, whose)
