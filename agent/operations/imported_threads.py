"""Chooses the ids of imported conversations: if another user has a conversation of the same name, the imported one gets
a different id."""

from turnlog.agent.conversations.ownership import append_as_owner
from turnlog.agent.operations.importers.imported import import_id
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.events.errors import EventTooLarge, InvalidEvent, WrongExpectedVersion


async def own_id(runtime: Runtime, first: Event, user: str) -> str:
    """Returns the id of the user's conversation that the file calls `first.thread`. If the conversation has no events
    yet, appends `first`, its first event in the file, which makes the user its owner.

    A conversation whose name or first event cannot be stored keeps its name. Raises NotFound if the user deleted it,
    Forbidden if the user only takes part in it.
    """

    async def claim(thread: str, version: int | None) -> str:
        if version == 0:
            done = await runtime.log.append(in_thread(first, thread), version)
            if done.duplicate:  # another user imported the same file at the same time
                raise WrongExpectedVersion(f"the conversation {thread!r} has begun in the meantime")
        return thread

    try:
        return await append_as_owner(runtime, first.tenant, first.thread, user, claim)
    except (InvalidEvent, EventTooLarge):
        return first.thread


def in_thread(event: Event, thread: str) -> Event:
    """Returns the event, moved to this conversation. An event that is moved gets a new id."""
    if thread == event.thread:
        return event
    id_ = import_id(event.tenant, thread, str(event.id), event.time)  # another user may import the same file
    return event.model_copy(update={"id": id_, "thread": thread})
