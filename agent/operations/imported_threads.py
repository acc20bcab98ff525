"""Ids of imported conversations: a name that another user has becomes an id of the importer's own."""

from turnlog.agent.conversations.ownership import append_as_owner
from turnlog.agent.operations.importers.imported import import_id
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.events.errors import EventTooLarge, InvalidEvent, WrongExpectedVersion


async def own_id(runtime: Runtime, first: Event, user: str) -> str:
    """Returns the id of the user's conversation with this name. A conversation without events becomes the user's when
    `first` is appended, its first event in the file.

    A conversation whose name or first event cannot be stored has no owner, so it keeps its name. Raises NotFound if the
    user deleted it, Forbidden if the user only takes part in it.
    """

    async def claim(thread: str, version: int | None) -> str:
        if version == 0:
            done = await runtime.log.append(in_thread(first, thread), version)
            if done.duplicate:  # another user imports the same file, and was first
                raise WrongExpectedVersion(f"the conversation {thread!r} has begun in the meantime")
        return thread

    try:
        return await append_as_owner(runtime, first.tenant, first.thread, user, claim)
    except (InvalidEvent, EventTooLarge):
        return first.thread


def in_thread(event: Event, thread: str) -> Event:
    """Returns the event as one of this conversation."""
    if thread == event.thread:
        return event
    id_ = import_id(event.tenant, thread, str(event.id), event.time)  # another user may import the same file
    return event.model_copy(update={"id": id_, "thread": thread})
