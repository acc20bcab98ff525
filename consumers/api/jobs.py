"""Jobs that outlast a request. Their progress and result are kept in this process, for the user who began them."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import IO, Annotated, Any, Literal

from fastapi import Depends, Request

from turnlog.consumers.api.principal import Principal, identify
from turnlog.consumers.api.problems import Refused, Stopping, problem_of, unexpected
from turnlog.events.errors import NotFound, TurnlogError

KEPT_S = 600.0
Work = Callable[["Job"], Awaitable[Any]]


@dataclass(slots=True)
class JobStatus:
    """The progress and result of a job. done, total: in the units of the work; total is null while it is unknown.
    error: a problem."""

    id: str
    kind: str
    state: Literal["running", "done", "failed"] = "running"
    done: float = 0
    total: float | None = None
    result: Any = None
    error: dict[str, Any] | None = None


@dataclass(slots=True)
class Job:
    """A job of a user. key: distinguishes jobs of the same kind. file: its output. more: an event that is set, and
    replaced by a new one, whenever the status changes."""

    owner: tuple[str, str]
    status: JobStatus
    work: Work
    key: str = ""
    file: IO[str] | None = None
    more: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        status = self.status
        try:
            status.result = await self.work(self)
            status.state = "done"
        except asyncio.CancelledError:
            self.fail(Stopping("the server is stopping, and this work with it; begin it again"))
            raise
        except TurnlogError as error:
            self.fail(error)
        except Exception as error:  # watchers get an id; the cause goes to the server's log
            status.state, status.error = "failed", json.loads(bytes(unexpected(error, status.kind).body))
        finally:
            self.wake()

    def fail(self, error: TurnlogError) -> None:
        self.status.state, self.status.error = "failed", json.loads(bytes(problem_of(error).body))

    def report(self, done: float, total: float | None) -> None:
        if self.status.state == "running":
            self.status.done, self.status.total = done, total
            self.wake()

    def wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()

    async def changes(self) -> AsyncGenerator[JobStatus]:
        """Yields the status now and after each change, until the work has ended."""
        while self.status.state == "running":
            more = self.more
            yield self.status
            await more.wait()
        yield self.status


class Jobs:
    """The jobs of this process; each is kept for KEPT_S after its end."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def begin(self, caller: Principal, kind: str, work: Work, key: str = "") -> Job:
        """Returns the caller's running job of this kind, or a new one. Raises Refused if one with another key is
        running."""
        for job in self.of(caller):
            if (job.status.kind, job.status.state) == (kind, "running"):
                if job.key != key:
                    raise Refused(409, "job-under-way", f"another {kind} of yours is running: job {job.status.id}")
                return job
        job = Job((caller.tenant, caller.user), JobStatus(uuid.uuid4().hex, kind), work, key)
        self._jobs[job.status.id] = job
        job.task = asyncio.create_task(job.run(), name=f"{kind}-{job.status.id}")
        job.task.add_done_callback(lambda task: task.get_loop().call_later(KEPT_S, self._drop, job))
        return job

    def of(self, caller: Principal) -> list[Job]:
        return [job for job in self._jobs.values() if job.owner == (caller.tenant, caller.user)]

    def drop_exports(self, tenant: str, user: str) -> None:
        """Deletes the exports of a user's data, no matter who made them. Their key is the user."""
        for job in list(self._jobs.values()):
            if (job.owner[0], job.status.kind, job.key) == (tenant, "export", user):
                self._drop(job)

    def _drop(self, job: Job) -> None:
        if job.task is not None:
            job.task.cancel()
        if job.file is not None:
            job.file.close()
        self._jobs.pop(job.status.id, None)

    def find(self, caller: Principal, job_id: str) -> Job:
        """Returns a job of the caller. Raises NotFound, also for jobs of others."""
        for job in self.of(caller):
            if job.status.id == job_id:
                return job
        raise NotFound(f"there is no job {job_id[:80]!r}; it may have ended long ago, or belong to another process")

    async def close(self) -> None:
        jobs = list(self._jobs.values())
        for job in jobs:
            self._drop(job)
        await asyncio.gather(*(job.task for job in jobs if job.task is not None), return_exceptions=True)


def jobs_of(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


def own_job(job: str, caller: Annotated[Principal, Depends(identify)], request: Request) -> Job:
    return jobs_of(request).find(caller, job)


OwnJob = Annotated[Job, Depends(own_job)]
