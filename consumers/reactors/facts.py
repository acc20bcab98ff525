"""What a thread looks like to the memory reactor, loaded from the read models."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.plain import said
from turnlog.consumers.reactors.once import Owner
from turnlog.events.contracts import Event
from turnlog.projectors.checkpoints import pruned_through
from turnlog.projectors.message import Message
from turnlog.projectors.messages import thread_messages
from turnlog.projectors.summaries import Summary, thread_summary
from turnlog.projectors.topics import tagged_through
from turnlog.projectors.writer import Connection


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread's conversation state and how far its derived results reach. user: of the newest turn."""

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


async def load(conn: Connection, event: Event, partition: int) -> Thread:
    place = (event.tenant, event.thread)
    return Thread(
        *place,
        event.user,
        partition,
        await thread_messages(conn, *place, await pruned_through(conn, *place)),
        await thread_summary(conn, *place),
        await tagged_through(conn, *place),
    )


async def is_still_there(conn: Connection, thread: Thread) -> bool:
    """False when the thread was deleted since it was loaded, or a turn in it has lost its words."""
    first, last = thread.messages[0].seq, thread.messages[-1].seq
    return await thread_messages(conn, thread.tenant, thread.thread, first - 1, last) == list(thread.messages)


def texts(messages: Sequence[Message]) -> list[str]:
    return [text for message in messages if (text := said(message))]
