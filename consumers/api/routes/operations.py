"""Operation of a tenant, for operators: lag, dead letters, rebuilds, scheduled jobs, usage, API keys; also the caller's
own jobs and tickets."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field

from turnlog.agent.access import api_keys
from turnlog.agent.access.access import Access
from turnlog.agent.access.api_keys import KeyInfo, NewKey
from turnlog.agent.access.identity import Role
from turnlog.agent.access.tickets import TICKET_S
from turnlog.agent.operations import activity, dead_letters, lag, read_models, usage
from turnlog.agent.operations.activity import HourOfType
from turnlog.agent.operations.dead_letters import DeadLetter, Retried
from turnlog.agent.operations.jobs import job_states
from turnlog.agent.operations.jobs.job_states import DecayStats, JobState
from turnlog.agent.operations.usage import By, Usage
from turnlog.agent.recall.embedding.backlog import Backlog
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.jobs import Job, JobStatus, OwnJob, jobs_of
from turnlog.consumers.api.pages import Cursor, Limit, Page, moment, page_after
from turnlog.consumers.api.principal import Asker, KeyMaker, Operator, Principal, identify
from turnlog.consumers.api.routes.limits import UserId
from turnlog.consumers.api.routes.threads import Seq
from turnlog.consumers.api.streams import OF_FEW
from turnlog.projectors.engine.lag import Lag

router = APIRouter(prefix="/api", tags=["operations"])
AnyCaller = Annotated[Principal, Depends(identify)]
Only = Annotated[str | None, Field(max_length=100)]


@dataclass(frozen=True, slots=True)
class Behind:
    """The work that is left to do. projections: by name and partition. embedding: texts that wait for a vector."""

    projections: list[Lag]
    embedding: Backlog


class Which(RequestBody):
    """The read model or reactor to work on. projection: a projection or reactor; null means all."""

    projection: Only = None


class WhichLetters(Which):
    """The parked events to work on. seq: the parked event at this sequence, with its thread; null means all of the
    tenant."""

    seq: int | None = Field(None, ge=1, le=2**62)


class KeyGrant(RequestBody):
    """The rights of a new API key. scopes: null means all that the role may. days: null means as long as the caller's
    own credential.

    A key has at most the rights of the credential that creates it; for another user, at most the rights when acting as
    them.
    """

    user: str = Field(min_length=1, max_length=255)
    role: Role = "user"
    scopes: list[str] | None = None
    label: str | None = None
    days: int | None = Field(None, ge=1, le=36_500)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket that opens one WebSocket within the given seconds."""

    ticket: str
    seconds: int = TICKET_S


@router.get("/operations/lag")
async def show_lag(caller: Operator) -> Behind:
    """Returns how far each projection and the embedder are behind the log."""
    return Behind(await lag.projection_lag(caller.system), await lag.embedding_backlog(caller.system))


@router.get("/operations/dead-letters")
async def list_dead_letters(
    caller: Operator,
    projection: Annotated[str | None, Query(max_length=100)] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[DeadLetter]:
    """Lists parked and dropped events of the tenant, in the order of the log."""
    letters = await dead_letters.list_dead_letters(caller.system, projection, caller.tenant)
    return page_after(letters, limit, cursor, lambda letter: (letter.seq, letter.projection))


@router.get("/operations/dead-letters/{seq}")
async def show_dead_letter(seq: Seq, caller: Operator) -> dict[str, Any]:
    """Returns the event as stored in the log, with personal fields sealed."""
    parked = await dead_letters.show_dead_letter(caller.system, seq, caller.tenant)
    return {**parked.line.document(), "dead_letters": parked.letters}


@router.post("/operations/dead-letters/retry")
async def retry_dead_letters(body: WhichLetters, caller: Operator, request: Request) -> Retried:
    """Applies parked events again, thread by thread in order, and repeats the work of reactors."""
    which = (body.seq, body.projection, caller.tenant)
    return await dead_letters.retry_dead_letters(caller.system, request.app.state.react, *which)


@router.post("/operations/dead-letters/{seq}/drop")
async def drop_dead_letter(seq: Seq, body: Which, caller: Operator) -> Retried:
    """Leaves the event out of the read models; its thread continues."""
    return await dead_letters.drop_dead_letter(caller.system, seq, body.projection, caller.tenant)


@router.post("/operations/rebuild", status_code=202)
async def rebuild(body: Which, caller: Operator, request: Request) -> JobStatus:
    """Begins to rebuild the tenant's rows from the log, in place; /api/jobs/{id} shows the progress."""

    async def work(job: Job) -> Any:
        return await read_models.rebuild_rows(caller.system, body.projection, caller.tenant, on_progress=job.report)

    return jobs_of(request).begin(caller, "rebuild", work).status


@router.get("/operations/schedule")
async def list_schedule(caller: Operator) -> list[JobState]:
    """Lists the server's scheduled jobs: when each ran last, and when it is due."""
    return await job_states.list_jobs(caller.system)


@router.get("/operations/memory-stats")
async def tenant_memory_stats(caller: Operator) -> DecayStats:
    """Returns the memories of all users of the tenant by tier, and what the decay job does next."""
    return await job_states.decay_stats(caller.runtime, caller.tenant)


@router.get("/operations/usage")
async def tenant_usage(caller: Operator, by: By = "user", limit: Limit = 100, cursor: Cursor = None) -> Page[Usage]:
    """Returns calls, tokens and cost of language and embedding models for all users of the tenant: days and months
    newest first, others by cost."""

    def sort_key(row: Usage) -> tuple[int | str, ...]:
        if by in ("day", "month"):
            return (-int(row.key.replace("-", "")),)
        return -round(row.cost_usd * 1e6), -row.calls, row.key

    rows = await usage.usage(caller.runtime, caller.tenant, None, by)
    return page_after(sorted(rows, key=sort_key), limit, cursor, sort_key)


@router.get("/operations/activity")
async def tenant_activity(caller: Operator, hours: Annotated[int, Query(ge=1, le=8_784)] = 168) -> list[HourOfType]:
    """Lists the counts of the analytics subscriber in the last hours, by hour, event type and role, oldest first."""
    return await activity.activity(caller.system, caller.tenant, hours)


@router.get("/operations/users/{user}/usage")
async def user_usage(user: UserId, caller: Operator, by: By = "day") -> list[Usage]:
    """Returns a user's calls, tokens and cost of language and embedding models."""
    return await usage.usage(caller.runtime, caller.tenant, user, by)


@router.get("/operations/keys")
async def list_keys(
    caller: KeyMaker,
    user: Annotated[str | None, Query(max_length=255)] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[KeyInfo]:
    """Lists API keys that the caller could have created, including revoked and expired ones, oldest first."""
    keys = await api_keys.list_keys(caller.system, caller.tenant, user, caller.identity)
    return page_after(keys, limit, cursor, lambda key: (moment(key.created_at), key.id))


@router.post("/operations/keys", status_code=201)
async def create_key(body: KeyGrant, caller: KeyMaker) -> NewKey:
    """Creates an API key. The response contains its secret, which is shown only once."""
    ttl = None if body.days is None else timedelta(days=body.days)
    grant = (body.user, body.role, body.scopes, body.label, ttl, caller.identity)
    return await api_keys.create_key(caller.system, caller.tenant, *grant)


@router.delete("/operations/keys/{key_id}")
async def revoke_key(key_id: Annotated[str, Path(max_length=100)], caller: KeyMaker) -> KeyInfo:
    """Revokes a key that the caller could have created."""
    return await api_keys.revoke_key(caller.system, caller.tenant, key_id, caller.identity)


@router.post("/tickets", status_code=201, tags=["access"])
async def issue_ticket(caller: Asker) -> Ticket:
    """Issues a ticket for a browser, which cannot send a header with a WebSocket and sends the ticket as its
    subprotocol."""
    return Ticket(await caller.system.cached(Access).issue_ticket(caller.identity))


@router.get("/jobs", tags=["jobs"])
async def list_own_jobs(caller: AnyCaller, request: Request) -> list[JobStatus]:
    """Lists work that the caller began in this process: imports, exports, rebuilds, redactions, erasures."""
    return [job.status for job in jobs_of(request).of(caller)]


@router.get("/jobs/{job}", tags=["jobs"])
async def show_job(job: OwnJob) -> JobStatus:
    """Returns the state of a job, and its result when it is done."""
    return job.status


@router.get("/jobs/{job}/events", response_class=EventSourceResponse, dependencies=OF_FEW, tags=["jobs"])
async def watch_job(job: OwnJob) -> AsyncIterator[ServerSentEvent]:
    """Streams a job's status whenever it changes. The event's name is the state; `done` or `failed` is the last."""
    async with aclosing(job.changes()) as changes:
        async for status in changes:
            yield ServerSentEvent(event=status.state, data=status)
