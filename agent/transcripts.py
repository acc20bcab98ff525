"""Threads read lately, kept in memory: a stored turn never changes, so only what came since is read (M10)."""

from collections import OrderedDict

from turnlog.projectors.message import Message
from turnlog.projectors.messages import thread_extent, thread_messages
from turnlog.projectors.writer import Connection

KEPT_MESSAGES = 50_000


class Transcripts:
    """Reads threads as `thread_messages` does. Postgres says at every read how many turns there are and which is
    the last; a thread whose turns in memory differ from that, as after a removal, is read anew.
    """

    def __init__(self, keep: int = KEPT_MESSAGES) -> None:
        """keep: messages over all threads; the threads that were not read for longest go first."""
        self._keep, self._size = keep, 0
        self._threads: OrderedDict[tuple[str, str], list[Message]] = OrderedDict()

    async def read(
        self, conn: Connection, tenant: str, thread: str, after_seq: int = 0, through_seq: int | None = None
    ) -> list[Message]:
        """The thread's turns after a sequence, oldest first; through_seq bounds them."""
        count, last = await thread_extent(conn, tenant, thread, after_seq)
        found = [message for message in self._threads.get((tenant, thread), ()) if message.seq > after_seq]
        newest = found[-1].seq if found else after_seq
        if newest < last:
            found += await thread_messages(conn, tenant, thread, newest, last)
        if len(found) != count or newest > last:
            found = await thread_messages(conn, tenant, thread, after_seq, last)
        self._remember((tenant, thread), found)
        return [m for m in found if through_seq is None or m.seq <= through_seq]

    def _remember(self, place: tuple[str, str], messages: list[Message]) -> None:
        self._size += len(messages) - len(self._threads.pop(place, ()))
        self._threads[place] = messages
        while self._size > self._keep:
            self._size -= len(self._threads.popitem(last=False)[1])
