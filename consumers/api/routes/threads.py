"""Conversations of the caller: list, open, look up, label, delete, fork."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from turnlog.agent.conversations import forks, labels, threads
from turnlog.agent.conversations.forks import Forked
from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.pages import Cursor, Limit, Page, moment, page_of, place_of
from turnlog.consumers.api.principal import Reader, WriteId, Writer

router = APIRouter(prefix="/api/threads", tags=["threads"])
Seq = Annotated[int, Path(ge=1, le=2**62)]
ThreadId = Annotated[str, Path(min_length=1, max_length=255, description="The conversation's id.")]

LabelFilter = Annotated[
    str | None, Query(max_length=200, description="Only conversations with this text in their label or id.")
]

# The conversation's version: the sequence of its last event.
VERSIONED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"description": "The conversation's version.", "schema": {"type": "string"}}}}
}


def tag_of(version: int) -> str:
    return f'"{version}"'


class NewThread(RequestBody):
    """A conversation to create. thread: an id of your choice; generated if left out."""

    thread: str | None = Field(None, min_length=1, max_length=255)
    label: str | None = Field(None, max_length=1_000)


class Label(RequestBody):
    label: str = Field(min_length=1, max_length=1_000)


class ForkAt(RequestBody):
    """The place of a fork. at_seq: the last sequence of the parent that the fork shares."""

    at_seq: int = Field(ge=1)
    thread: str | None = Field(None, min_length=1, max_length=255)
    label: str | None = Field(None, max_length=1_000)


@router.get("")
async def list_threads(
    caller: Reader, limit: Limit = 50, cursor: Cursor = None, query: LabelFilter = None
) -> Page[ThreadInfo]:
    """Lists conversations, most recently active first."""
    listed = await threads.find_threads(*caller.person, query, limit + 1, place_of(cursor, datetime, str))
    return page_of(listed, limit, lambda thread: (moment(thread.last_active_at), thread.thread))


@router.post("", status_code=201)
async def open_thread(body: NewThread, caller: Writer, write_id: WriteId) -> ThreadInfo:
    """Opens a conversation; an existing one of the caller stays as it is, except that a label replaces its label."""
    thread = body.thread or str(write_id)
    place = await caller.claims(thread)
    if body.label is not None:
        await threads.rename_thread(*place, body.label, event_id=write_id)
    return await threads.get_thread(*place)


@router.get("/{thread}", responses=VERSIONED)
async def get_thread(thread: ThreadId, caller: Reader, response: Response) -> ThreadInfo:
    """Returns a conversation of the caller. Its ETag is the version that an append can require."""
    place = await caller.owns(thread, "reader")
    response.headers["ETag"] = tag_of(await threads.thread_version(*place))
    return await threads.get_thread(*place)


@router.patch("/{thread}")
async def rename_thread(thread: ThreadId, body: Label, caller: Writer, write_id: WriteId) -> ThreadInfo:
    """Changes the label of a conversation."""
    place = await caller.owns(thread)
    await threads.rename_thread(*place, body.label, event_id=write_id)
    return await threads.get_thread(*place)


@router.post("/{thread}/label")
async def label_thread(thread: ThreadId, caller: Writer) -> ThreadInfo:
    """Labels a conversation with its user's first words, shortened; an existing label stays."""
    place = await caller.owns(thread)
    await labels.label_thread(*place)
    return await threads.get_thread(*place)


@router.delete("/{thread}", status_code=204)
async def delete_thread(thread: ThreadId, caller: Writer, write_id: WriteId) -> Response:
    """Removes a conversation from every read model; reads no longer find it when this returns."""
    await threads.delete_thread(*await caller.owns(thread), event_id=write_id)
    return Response(status_code=204)


@router.post("/{thread}/forks", status_code=201)
async def fork_thread(thread: ThreadId, body: ForkAt, caller: Writer, write_id: WriteId) -> Forked:
    """Creates a new conversation that shares the turns up to a sequence."""
    place = await caller.owns(thread)
    *_, fork = await caller.may_begin(body.thread or str(write_id))
    return await forks.fork_thread(*place, body.at_seq, fork, body.label)
