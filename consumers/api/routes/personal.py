"""All that there is of the caller: exported, cleared in part, erased."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing, nullcontext
from functools import partial
from tempfile import TemporaryFile
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from turnlog.agent.privacy.receipt import Receipt
from turnlog.agent.sanitiser.sanitise import SanitiseLevel
from turnlog.agent.use_cases import personal_data
from turnlog.agent.use_cases.personal_data import Clearing, Parts
from turnlog.consumers.api.caller import Caller, Eraser
from turnlog.consumers.api.jobs import Job, JobStatus, OwnJob, jobs_of
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.errors import NotFound
from turnlog.events.progress import OnProgress, no_progress

router = APIRouter(prefix="/api", tags=["personal data"])
CHUNK = 64 * 1024


class Export(BaseModel):
    """level: how much of the text is masked."""

    level: Literal["light", "moderate", "full"] = "moderate"


class Erasure(BaseModel):
    """reason: stored in the receipt."""

    reason: str | None = Field(None, max_length=1_000)


@router.post("/export", status_code=202)
async def export(given: Export, caller: Eraser, request: Request) -> JobStatus:
    """Begins to write all that is stored of the caller; when its job is done, GET /api/export/{job} has it."""

    async def work(job: Job) -> None:
        job.file = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (the job keeps it)
        async with aclosing(exported(caller, SanitiseLevel[given.level.upper()], job.report)) as pieces:
            async for piece in pieces:
                job.file.write(piece)

    return jobs_of(request).begin(caller, "export", work).status


@router.get("/export/{job}", response_class=StreamingResponse)
async def exported_file(_: Eraser, job: OwnJob) -> StreamingResponse:
    """The document as JSON."""
    if job.file is None or job.status.state != "done":
        raise NotFound("there is no export, or it is not written yet; /api/jobs/{job} shows how far it is")
    job.file.seek(0)
    return as_file(iter(partial(job.file.read, CHUNK), ""))


@router.post("/erase", status_code=202)
async def erase(given: Erasure, caller: Eraser, request: Request) -> JobStatus:
    """Begins to destroy the caller's keys and everything of the caller in every read model, cache, archive and what is
    readable in the log. It cannot be undone. The job's result is a receipt."""
    jobs = jobs_of(request)

    async def work(job: Job) -> Receipt:
        jobs.drop(caller, "export")
        runtime, reach = caller.system, erasure_reach(caller.system.settings, lambda _: nullcontext(job.report))
        plan = await personal_data.plan_erasure(runtime, caller.tenant, caller.user, reach)
        return await personal_data.erase_person(runtime, plan, reach, given.reason)

    return jobs.begin(caller, "erase", work).status


@router.delete("/user-data")
async def clear(
    caller: Eraser, includeMemories: bool = False, includeConversations: bool = False, includeEntities: bool = False
) -> Clearing:
    """Removes these parts from every read model. The log keeps the events: only an erasure makes them unreadable."""
    parts = Parts(includeMemories, includeConversations, includeEntities)
    return await personal_data.clear_person(caller.system, caller.tenant, caller.user, parts)


def exported(caller: Caller, level: SanitiseLevel, on_progress: OnProgress = no_progress) -> AsyncGenerator[str]:
    return personal_data.export_person(caller.system, caller.tenant, caller.user, level, on_progress)


def as_file(pieces: AsyncIterable[str] | Iterable[str]) -> StreamingResponse:
    headers = {"Content-Disposition": 'attachment; filename="turnlog-export.json"'}
    return StreamingResponse(pieces, headers=headers, media_type="application/json")
