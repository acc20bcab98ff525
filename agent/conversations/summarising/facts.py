"""Loads the state of a thread for its maintenance from the read models."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.context.plain_text import said
from turnlog.agent.models.cached_calls import Owner
from turnlog.events.contracts import Event
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message, thread_messages
from turnlog.projectors.models.conversation.speech import repeats_memory
from turnlog.projectors.models.conversation.summaries import Summary, thread_summary
from turnlog.projectors.models.conversation.thread_lookup import pruned_through
from turnlog.projectors.models.conversation.topics import tagged_through


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """The conversation state of a thread, and how far its derived results reach. user: the user of the newest turn."""

    tenant: str
    thread: str
    user: str | None
    partition: int
    messages: Sequence[Message]
    summary: Summary | None
    tagged_through: int

    @property
    def place(self) -> str:
        return self.owner.place

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant, self.thread, self.user)

    @property
    def summarised_through(self) -> int:
        return self.summary.covered_seq if self.summary else 0

    def span(self, after: int, through: int) -> list[Message]:
        return [message for message in self.messages if after < message.seq <= through]


async def load(conn: Connection, event: Event, partition: int) -> ThreadFacts:
    place = (event.tenant, event.thread)
    return ThreadFacts(
        *place,
        event.user,
        partition,
        await thread_messages(conn, *place, await pruned_through(conn, *place)),
        await thread_summary(conn, *place),
        await tagged_through(conn, *place),
    )


async def is_still_there(conn: Connection, thread: ThreadFacts) -> bool:
    """Returns False if the thread was deleted, or one of its turns erased, since it was loaded."""
    first, last = thread.messages[0].seq, thread.messages[-1].seq
    return await thread_messages(conn, thread.tenant, thread.thread, first - 1, last) == list(thread.messages)


def texts(messages: Sequence[Message]) -> list[str]:
    """Returns the texts of turns for summaries and topics, without turns that only repeat results of turnlog."""
    return [text for message in messages if not repeats_memory(message) and (text := said(message))]
