"""Threads read lately, kept in memory: a stored turn never changes, so only what came since is read (M10)."""

from collections import OrderedDict

from turnlog.events.remembered import holds_words
from turnlog.projectors.message import Message
from turnlog.projectors.messages import thread_messages
from turnlog.projectors.thread_lookup import Overview
from turnlog.projectors.writer import Connection

KEPT_MESSAGES = 50_000


class Transcripts:
    """Turns of the conversation state, as many as Postgres says there are: a thread whose turns in memory differ
    from that in number or in the last one, as after a removal, is read anew.
    """

    def __init__(self, keep: int = KEPT_MESSAGES) -> None:
        """keep: messages over all threads; the threads that were not read for longest go first."""
        self._keep, self._size = keep, 0
        self._threads: OrderedDict[tuple[str, str], list[Message]] = OrderedDict()
        holds_words(self)

    def forget_all(self) -> None:
        self._threads.clear()
        self._size = 0

    async def state(self, conn: Connection, tenant: str, thread: str, now: Overview) -> list[Message]:
        """The turns of the thread's state, oldest first; the list is the caller's own."""
        known = [m for m in self._threads.get((tenant, thread), ()) if now.pruned_through < m.seq <= now.last_seq]
        newest = known[-1].seq if known else now.pruned_through
        if newest < now.last_seq:
            known += await thread_messages(conn, tenant, thread, newest, now.last_seq)
        if len(known) != now.count:
            known = await thread_messages(conn, tenant, thread, now.pruned_through, now.last_seq)
        self._remember((tenant, thread), known)
        return list(known)

    def _remember(self, place: tuple[str, str], messages: list[Message]) -> None:
        self._size += len(messages) - len(self._threads.pop(place, ()))
        self._threads[place] = messages
        while self._size > self._keep:
            self._size -= len(self._threads.popitem(last=False)[1])
