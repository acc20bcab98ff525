"""All data of the caller: import, export, clearing of parts, erasure, and redaction of turns."""

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.datastructures import UploadFile

from turnlog.agent.access.identity import Forbidden
from turnlog.agent.access.throttle.fair_share import in_share
from turnlog.agent.conversations.ownership import check_not_deleted
from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel
from turnlog.agent.operations.importers import FORMATS, Defaults, ImportFailed
from turnlog.agent.operations.importing import ImportRequest, check_import, import_conversations, prepare_import
from turnlog.agent.privacy import personal_data
from turnlog.agent.privacy.erasure.erasure_receipt import Receipt
from turnlog.agent.privacy.personal_data import Clearing, Parts, StoredOfPerson
from turnlog.agent.privacy.redaction.redact import (
    RedactionPreview,
    RedactionReceipt,
    plan_redaction,
    redact_turn,
    words_to_strike,
)
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.jobs import Job, JobStatus, OwnJob, jobs_of
from turnlog.consumers.api.principal import Eraser, OfUser, Principal, Reader, Writer
from turnlog.consumers.api.problems import Refused
from turnlog.consumers.api.routes.threads import Seq, ThreadId
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.errors import NotFound
from turnlog.events.progress import no_progress
from turnlog.events.subjects import check_conversation

router = APIRouter(prefix="/api", tags=["personal data"])
CHUNK = 64 * 1024
MOST_UNPACKED = 1 << 30
NAME = r"^\w[\w. ()-]{0,59}$"
FILE = {"type": "string", "format": "binary"}


class Export(RequestBody):
    """The options of an export. level: how much of the text is masked."""

    level: Literal["light", "moderate", "full"] = "moderate"


class Erasure(RequestBody):
    """The options of an erasure. reason: stored in the receipt."""

    reason: str | None = Field(None, max_length=1_000)


@router.post(
    "/import",
    status_code=202,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": FILE},
                "multipart/form-data": {
                    "schema": {"type": "object", "properties": {"file": FILE}, "required": ["file"]}
                },
            },
        }
    },
)
async def import_file(
    caller: Writer,
    request: Request,
    name: Annotated[
        str | None,
        Query(
            pattern=NAME,
            description="Name for conversations without a name in the file. The file of a form has its own name.",
        ),
    ] = None,
    format: Annotated[str | None, Query(description="Format of the file. Default: detected.")] = None,
    thread: Annotated[
        str | None, Query(description="Thread for all turns, instead of the file's conversations.")
    ] = None,
    dry_run: Annotated[bool, Query(description="Report what is in the file, and store nothing.")] = False,
) -> JobStatus:
    """Begins to import a file for the caller: an export of another product, or turnlog's JSONL. The file is the body,
    or the only file of a form.

    /api/jobs/{id} shows how many turns are stored, and finally a report. The same file again adds nothing. While a file
    is being imported, other files are refused.
    """
    if format not in (None, *FORMATS):
        raise Refused(422, "bad-format", f"there is no format {format!r}; there are {', '.join(FORMATS)}")
    if thread is not None:
        check_conversation(thread)
    folder = TemporaryDirectory(prefix="turnlog-")
    try:
        async with in_share(*caller.person, "reads"):
            filename, chunks = await _received(request)
            name = name or (filename if re.fullmatch(NAME, filename) else "import")
            path, digest = Path(folder.name) / name, sha256(repr((name, format, thread, dry_run)).encode())
            with path.open("wb") as file:
                async for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
        defaults = Defaults(tenant=caller.tenant, user=caller.user, thread=thread)
        asked = ImportRequest(path, format, defaults, embed=False, own=True, most=MOST_UNPACKED)

        async def work(job: Job) -> dict[str, Any]:
            with folder:
                try:
                    prepared = await asyncio.to_thread(prepare_import, asked)
                    if dry_run:
                        return (await asyncio.to_thread(check_import, prepared)).document()
                    nothing = no_progress
                    done = await import_conversations(caller.system, prepared, job.report, nothing, nothing)
                    return done.document()
                except ImportFailed as error:
                    raise ImportFailed(str(error).replace(str(path), name)) from error

        job = jobs_of(request).begin(caller, "import", work, digest.hexdigest())
        if job.work is not work:  # the same file is being imported already
            folder.cleanup()
    except BaseException:
        folder.cleanup()
        raise
    finally:
        await request.close()  # the file of a form, which was spooled to disk
    return job.status


async def _received(request: Request) -> tuple[str, AsyncIterable[bytes]]:
    """Returns the name and the bytes of the uploaded file; the name is "" if the body is the file itself."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return "", request.stream()
    form = await request.form(max_files=2)
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    if len(files) != 1:
        raise Refused(422, "bad-form", "send one file in the form")
    return files[0].filename or "", _chunks(files[0])


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK):
        yield chunk


@router.post("/export", status_code=202)
async def export(caller: Eraser, request: Request, body: Export = Export(), user: OfUser = None) -> JobStatus:
    """Begins to export all that is stored of the caller; when the job is done, GET /api/export/{job} returns it."""
    *_, person = caller.person_named(user)

    async def work(job: Job) -> None:
        job.file = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (the job keeps it)
        about = (caller.system, caller.tenant, person, SanitiseLevel[body.level.upper()])
        async with aclosing(personal_data.export_person(*about, job.report)) as pieces:
            async for piece in pieces:
                job.file.write(piece)

    return jobs_of(request).begin(caller, "export", work, person).status


@router.get("/export/{job}", response_class=StreamingResponse)
async def exported_file(_: Eraser, job: OwnJob) -> StreamingResponse:
    """Returns the exported document as JSON."""
    if job.file is None or job.status.state != "done":
        raise NotFound("there is no export, or it is not written yet; /api/jobs/{job} shows how far it is")
    job.file.seek(0)
    return as_file(iter(partial(job.file.read, CHUNK), ""))


@router.post("/erase", status_code=202)
async def erase(body: Erasure, caller: Eraser, request: Request, user: OfUser = None) -> JobStatus:
    """Begins to destroy the caller's keys and all data of the caller in read models, caches, archives and readable
    parts of the log. This cannot be undone. The job's result is a receipt."""
    jobs, (*_, person) = jobs_of(request), caller.person_named(user)

    async def work(job: Job) -> Receipt:
        jobs.drop_exports(caller.tenant, person)
        runtime, reach = caller.system, erasure_reach(caller.system.settings, lambda _: nullcontext(job.report))
        plan = await personal_data.plan_erasure(runtime, caller.tenant, person, reach)
        return await personal_data.erase_person(runtime, plan, reach, body.reason)

    return jobs.begin(caller, "erase", work, person).status


class Redaction(RequestBody):
    """words: a word or phrase to strike; whole: strike all that the turn says. reason: stored in the receipt."""

    words: str | None = Field(None, max_length=1_000)
    whole: bool = False
    reason: str | None = Field(None, max_length=1_000)


@router.post("/threads/{thread}/turns/{seq}/redact/preview")
async def preview_redaction(thread: ThreadId, seq: Seq, body: Redaction, caller: Eraser) -> RedactionPreview:
    """Shows where the words of a turn occur, and changes nothing. For the owner of a conversation in which nobody else
    speaks, and for operators."""
    words, (tenant, own, owner) = words_to_strike(body.words, body.whole), await _redacted_place(caller, thread)
    return (await plan_redaction(caller.system, tenant, own, seq, words, owner)).preview


@router.post("/threads/{thread}/turns/{seq}/redact", status_code=202)
async def redact(thread: ThreadId, seq: Seq, body: Redaction, caller: Eraser, request: Request) -> JobStatus:
    """Begins to strike words of a turn, or all of it, from the log and everything derived from it. For the owner of a
    conversation in which nobody else speaks, and for operators. This cannot be undone. The job's result is a
    receipt."""
    words, (tenant, own, owner) = words_to_strike(body.words, body.whole), await _redacted_place(caller, thread)
    system = caller.system

    async def work(job: Job) -> RedactionReceipt:
        reach = erasure_reach(system.settings, lambda _: nullcontext(job.report))
        receipt = await redact_turn(system, tenant, own, seq, reach, words, caller.user, body.reason, owner)
        return receipt if owner is None and tenant == system.settings.tenant else receipt.for_owner()

    key = sha256(repr((own, seq, words)).encode()).hexdigest()
    return jobs_of(request).begin(caller, "redact", work, key).status


async def _redacted_place(caller: Principal, thread: str) -> tuple[str, str, str | None]:
    """Returns tenant, id and owner of the caller's conversation; the owner is None for operators, who also reach
    conversations of others. Raises NotFound, Forbidden."""
    is_operator = "operate" in caller.identity.scopes
    try:
        own = (await caller.owns(thread))[2]
    except (NotFound, Forbidden):
        if not is_operator or not await caller.system.log.thread_head(caller.tenant, thread):
            raise
        await check_not_deleted(caller.runtime, caller.tenant, own := thread)
    return caller.tenant, own, None if is_operator else caller.user


@router.get("/user-data")
async def stored(caller: Reader, user: OfUser = None) -> StoredOfPerson:
    """Returns how much is stored of the caller, and how many tokens models have used for them."""
    return await personal_data.stored_of_person(*caller.person_named(user))


@router.delete("/user-data")
async def clear(
    caller: Eraser,
    includeMemories: bool = False,
    includeConversations: bool = False,
    includeEntities: bool = False,
    user: OfUser = None,
) -> Clearing:
    """Removes these parts of the caller's data from every read model. The log keeps the events; only an erasure makes
    them unreadable.
    """
    *_, person = caller.person_named(user)
    parts = Parts(includeMemories, includeConversations, includeEntities)
    return await personal_data.clear_person(caller.system, caller.tenant, person, parts)


def as_file(pieces: AsyncIterable[str] | Iterable[str]) -> StreamingResponse:
    headers = {"Content-Disposition": 'attachment; filename="turnlog-export.json"'}
    return StreamingResponse(pieces, headers=headers, media_type="application/json")
