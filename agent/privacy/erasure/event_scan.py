"""Finds a person's events in the log: in the person's threads, and in threads shared with others.

Events name their user, so the tenant's part of the log is read from beginning to end. Read models are not enough: they
lack deleted threads and may be behind.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnlog.events.codec import parsed
from turnlog.events.errors import InvalidEvent, InvalidToken
from turnlog.events.log import Log
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.stored import Stored
from turnlog.events.subjects import (
    StoredSubject,
    check_place,
    memory_thread,
    parse_stored,
    present_thread,
    tenant_filter,
    thread_filters,
    thread_token,
    type_filter,
)
from turnlog.projectors.models.store.lookup import memories_of
from turnlog.projectors.models.store.projection import store_thread

FILTERS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Person:
    """A user of a tenant. threads: further threads that belong to the person regardless of the `user` of their events,
    such as those of LangGraph's store; a name that ends in '.' is a prefix."""

    tenant: str
    user: str
    threads: tuple[str, ...] = ()

    def owns(self, thread: str) -> bool:
        return thread == memory_thread(self.user) or any(
            thread == name or (name.endswith(".") and thread.startswith(name)) for name in self.threads
        )


def person_of(tenant: str, user: str, namespaces: Iterable[str] = ()) -> Person:
    """Returns the person with their threads. namespaces: further namespaces of LangGraph's store, as labels joined by
    dots; that of the user's memories is always included.

    Raises InvalidToken.
    """
    check_place(tenant, user=user)
    spaces = [memories_of(user), *(tuple(namespace.split(".")) for namespace in namespaces)]
    threads = [thread for space in spaces for thread in (store_thread(space), store_thread(space) + ".")]
    return Person(tenant, user, tuple(threads))


@dataclass(frozen=True, slots=True)
class ScannedEvent:
    """A message of the log with its subject and envelope. envelope: None if the message is not an envelope.

    thread: None if there is no envelope or it does not belong on its subject, so that no projector applies the event.
    """

    stored: Stored
    subject: StoredSubject
    envelope: dict[str, Any] | None
    thread: str | None

    @property
    def type(self) -> str:
        return self.subject.type

    @property
    def user(self) -> str | None:
        user = None if self.envelope is None else self.envelope.get("user")
        return user if isinstance(user, str) else None


@dataclass(slots=True)
class Traces:
    """The threads with events of a person. own: threads without another speaker, and threads that belong to the person
    by name. shared: thread → the sequence of the person's first event in it; 0 for another person's fork of one of
    these threads.

    strays: sequences of the person's events whose envelope does not belong on their subject. unreadable: sequence →
    token of the thread, for messages that contain the person's id or the name of one of their threads and cannot be
    read.
    """

    own: set[str] = field(default_factory=set)
    shared: dict[str, int] = field(default_factory=dict)
    strays: set[int] = field(default_factory=set)
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def threads(self) -> list[str]:
        return sorted(self.own) + sorted(self.shared)


async def find_traces(
    log: Log, person: Person, more: Iterable[str], on_progress: OnProgress = no_progress, after: int = 0
) -> Traces:
    """Returns the threads with a person's events. more: threads that are already known. after: search for other threads
    only in events after this sequence.

    Raises GapInLog, LogUnavailable.
    """
    traces = Traces()
    named = await named_threads(log, person, on_progress, after, traces) | set(more)
    users: defaultdict[str, set[str]] = defaultdict(set)
    first: dict[str, int] = {}
    async for scanned in events_of(log, person.tenant, sorted(named)):
        if scanned.thread is None:
            continue
        if scanned.user is not None:
            users[scanned.thread].add(scanned.user)
        if scanned.user == person.user:
            first.setdefault(scanned.thread, scanned.stored.seq)
    for thread in sorted(named):
        if person.owns(thread) or users[thread] <= {person.user}:
            traces.own.add(thread)
        elif thread in first:
            traces.shared[thread] = first[thread]
    await _add_forks(log, person, traces)
    return traces


def are_of(threads: Collection[str]) -> Callable[[ScannedEvent], bool]:
    """Returns a function that tells whether an event belongs to one of the threads; an unreadable event belongs to the
    thread of its subject."""
    named, subjects = frozenset(threads), tokens(threads)
    return lambda scanned: (
        scanned.subject.thread_token in subjects if scanned.thread is None else scanned.thread in named
    )


def tokens(threads: Iterable[str]) -> frozenset[str]:
    """Returns the tokens that stand for the threads in the subjects of stored messages."""
    return frozenset(thread_token(thread) for thread in threads)


async def events_of(log: Log, tenant: str, threads: Sequence[str], after: int = 0) -> AsyncIterator[ScannedEvent]:
    """Yields every event of the threads after a sequence, in the order of the log within each group of FILTERS_AT_ONCE
    threads."""
    head, belongs = await log.head(), are_of(threads)
    for at in range(0, len(threads), FILTERS_AT_ONCE):
        filters = [
            subject for thread in threads[at : at + FILTERS_AT_ONCE] for subject in thread_filters(tenant, thread)
        ]
        async for stored in log.read(filters, after + 1, head):
            if belongs(scanned := scanned_event(stored)):
                yield scanned


def scanned_event(stored: Stored) -> ScannedEvent:
    subject = parse_stored(stored.subject)
    try:
        envelope = parsed(stored.body)
    except InvalidEvent:
        return ScannedEvent(stored, subject, None, None)
    thread = envelope.get("thread", envelope.get("subject"))
    if envelope.get("tenant", "default") != subject.tenant or not _is_token(thread, subject.thread_token):
        return ScannedEvent(stored, subject, envelope, None)
    user = envelope.get("user")
    return ScannedEvent(stored, subject, envelope, present_thread(str(thread), user if isinstance(user, str) else None))


def _is_token(thread: object, token: str) -> bool:
    try:
        return isinstance(thread, str) and thread_token(thread) == token
    except InvalidToken:
        return False


async def named_threads(
    log: Log, person: Person, on_progress: OnProgress = no_progress, after: int = 0, traces: Traces | None = None
) -> set[str]:
    """Searches the log after a sequence; returns the threads that have an event of the person or belong to the person
    by name. Only bodies that contain the person's id or the name of one of their threads are parsed.

    traces: gets the strays and unreadable messages that are found.
    """
    traces = traces or Traces()
    threads: set[str] = set()
    head, marks = await log.head(), _marks(person)
    async for stored in log.read([tenant_filter(person.tenant)], after + 1, head):
        if stored.seq % 1_000 == 0:
            on_progress(stored.seq, head)
        if not any(mark in stored.body for mark in marks):
            continue
        scanned = scanned_event(stored)
        if scanned.envelope is None:
            traces.unreadable[stored.seq] = scanned.subject.thread_token
        elif scanned.thread is None and scanned.user == person.user:
            traces.strays.add(stored.seq)
        elif scanned.thread is not None and (scanned.user == person.user or person.owns(scanned.thread)):
            threads.add(scanned.thread)
    on_progress(head, head)
    return threads


async def _add_forks(log: Log, person: Person, traces: Traces) -> None:
    """Adds other people's forks of these threads, because they begin with the person's turns and results derived from
    them."""
    forks = [scanned_event(stored) async for stored in log.read([type_filter("thread_forked")], 1, await log.head())]
    while True:
        before = len(traces.shared)
        for fork in forks:
            if fork.thread is None or fork.thread in traces.own or fork.envelope is None:
                continue
            if fork.subject.tenant != person.tenant:
                continue
            data = fork.envelope.get("data")
            parent, at_seq = (data.get("parent"), data.get("at_seq")) if isinstance(data, dict) else (None, None)
            if not isinstance(parent, str) or not isinstance(at_seq, int):
                continue
            if parent in traces.own or (parent in traces.shared and traces.shared[parent] <= at_seq):
                traces.shared[fork.thread] = 0
        if len(traces.shared) == before:
            return


def _marks(person: Person) -> list[bytes]:
    names = [person.user, memory_thread(person.user), *(thread.rstrip(".") for thread in person.threads)]
    return [
        form
        for name in names
        for form in {json.dumps(name, ensure_ascii=False)[1:-1].encode(), json.dumps(name)[1:-1].encode()}
    ]
