"""Applies retention: removes turns that are too old from the log, together with everything derived from them. The
limit is a setting; users may choose a shorter one.

Old events are deleted, and only events that must stay without the old words are replaced, so that the log of a long
conversation shrinks. A conversation whose turns and checkpoints are all old is removed completely; only its events
without words stay in the log, for the statistics. If a younger turn repeats words of an old one, these words stay until
the younger turn is too old.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4, uuid5

from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.privacy.erasure import rows
from turnlog.agent.privacy.erasure.event_scan import Person, ScannedEvent, scanned_event
from turnlog.agent.privacy.erasure.scanning import Scan, scan_buckets, scan_stream, scan_tables
from turnlog.agent.privacy.erasure.string_search import MOST_CANDIDATES, SearchStrings, chosen
from turnlog.agent.privacy.redaction.aging import Ages, Gone, is_clear, memory_outcomes, outcomes
from turnlog.agent.privacy.redaction.replacing import Struck, alone, carrier, clear_caches, rebuild, receipt_event
from turnlog.agent.privacy.redaction.striking import comparable, said_in, sentences_of
from turnlog.agent.runtime import Runtime
from turnlog.events.codec import decode
from turnlog.events.contracts import (
    CheckpointSaved,
    Erased,
    Event,
    EventRedacted,
    MemoryForgotten,
    Recorded,
    ThreadForked,
    TurnRecorded,
    TurnsExpired,
)
from turnlog.events.contracts.base import in_calendar
from turnlog.events.errors import InvalidEvent, WrongExpectedVersion
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.read import replacements
from turnlog.events.sealing import owners_to_seal
from turnlog.events.signing import Signer
from turnlog.events.stored import recorded
from turnlog.events.subjects import MEMORIES, OWN_THREADS, SHADOW, memory_thread, tenant_type_filter, type_filter
from turnlog.projectors.engine.writer import Connection

SOURCE = "turnlog/retention"
THREADS_AT_ONCE, DELETED_AT_ONCE, MOST_STRINGS = 50, 16, 400
# A conversation stays as long as one of these events is young.
LASTING = (TurnRecorded, CheckpointSaved)


@dataclass(slots=True)
class Old:
    """Turns in the log that are too old. turns: (tenant, thread) → person → number of turns. unfinished: tenant → the
    id and threads of a run that was killed."""

    ages: Ages
    turns: dict[tuple[str, str], Counter[str | None]] = field(default_factory=dict)
    unfinished: dict[str, tuple[UUID, set[str]]] = field(default_factory=dict)

    @property
    def tenants(self) -> list[str]:
        return sorted({*(tenant for tenant, _ in self.turns), *self.unfinished})

    def threads(self, tenant: str) -> list[str]:
        again = self.unfinished[tenant][1] if tenant in self.unfinished else set[str]()
        return sorted({thread for of, thread in self.turns if of == tenant} | again)


@dataclass(slots=True)
class Leaving:
    """The changes for a batch of conversations of one tenant. threads: threads whose rows are rebuilt. ends: thread →
    its last sequence, for conversations that are removed completely. texts: sentences of the old turns."""

    turns: int = 0
    threads: dict[str, None] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    removed: list[Recorded] = field(default_factory=list)
    replaced: list[Struck] = field(default_factory=list)
    forgotten: list[Event] = field(default_factory=list)
    texts: dict[str, None] = field(default_factory=dict)

    def add(self, entry: Recorded, outcome: Event | None) -> None:
        if outcome is entry.event:
            return
        if outcome is None:
            self.removed.append(entry)
        else:
            self.replaced.append(Struck(entry, outcome))
        self.threads[entry.event.thread] = None

    def keep_whole(self, thread: str) -> None:
        """Leaves a conversation unchanged until the next run, because it got a new event meanwhile."""
        kept = [entry for entry in self.removed if entry.event.thread == thread]
        self.turns -= sum(isinstance(entry.event.data, TurnRecorded) for entry in kept)
        self.removed = [entry for entry in self.removed if entry.event.thread != thread]
        del self.ends[thread]


async def find_old(runtime: Runtime, at: datetime, on_progress: OnProgress = no_progress) -> Old:
    """Returns the turns in the log that are too old; changes nothing. Turns are read only if anybody's retention is
    limited. at: the time that counts as now."""
    async with runtime.reading("memories") as conn:
        old = Old(Ages(at, runtime.settings.retention_days, await _own_days(conn)))
    types, lasting = ["turns_expired"], set[tuple[str, str]]()
    if old.ages.default is not None or old.ages.own:
        types += ["turn_recorded", "checkpoint_saved"]
    head = await runtime.log.head()
    async for stored in runtime.log.read([type_filter(type_) for type_ in types], 1, head):
        scanned = scanned_event(stored)
        if stored.seq % 1_000 == 0:
            on_progress(stored.seq, head)
        if scanned.type == "turns_expired":
            _note_run(old, scanned, runtime.log.signer)
        elif scanned.thread is not None and not scanned.thread.startswith(OWN_THREADS):
            tenant, is_turn = scanned.subject.tenant, scanned.type == "turn_recorded"
            if not old.ages.is_old(tenant, scanned.user, _said_at(scanned), stored.stored_at):
                lasting.add((tenant, scanned.thread))
            else:
                old.turns.setdefault((tenant, scanned.thread), Counter())[scanned.user] += is_turn
    old.turns = {talk: users for talk, users in old.turns.items() if users.total() or talk not in lasting}
    return old


@dataclass(frozen=True, slots=True)
class TooOld:
    """A person's turns that the next run removes. user: None for turns without a user. days: the limit for their
    age."""

    user: str | None
    days: int
    turns: int
    conversations: int


async def too_old(runtime: Runtime, tenant: str, at: datetime) -> list[TooOld]:
    """Returns the people whose turns are too old, those with the most turns first. at: the time that counts as now."""
    await runtime.wait_until_projected(names=("memories",))
    old = await find_old(runtime, at)
    turns, talks = Counter[str | None](), Counter[str | None]()
    for users in (users for (of, _), users in old.turns.items() if of == tenant):
        turns.update(users)
        talks.update(users.keys())
    return [TooOld(user, old.ages.days(tenant, user) or 0, count, talks[user]) for user, count in turns.most_common()]


async def _own_days(conn: Connection) -> dict[tuple[str, str | None], int]:
    cursor = await conn.execute(
        "SELECT tenant, user_id, (preferences ->> 'retention_days')::int FROM user_preferences "
        "WHERE preferences ->> 'retention_days' IS NOT NULL AND starts_with(thread_id, %s)",
        (MEMORIES,),
    )
    return {(tenant, user): days for tenant, user, days in await cursor.fetchall()}


def _said_at(scanned: ScannedEvent) -> datetime:
    try:
        return in_calendar(datetime.fromisoformat(str((scanned.envelope or {}).get("time"))))
    except (ValueError, TypeError):
        return scanned.stored.stored_at


def _note_run(old: Old, scanned: ScannedEvent, signer: Signer | None) -> None:
    try:
        if signer is not None:
            signer.check_signed(scanned.stored.seq, scanned.stored.body)
        data = decode(scanned.stored.body).data
    except InvalidEvent:
        return
    if isinstance(data, TurnsExpired) and data.hits is None:
        run, threads = old.unfinished.get(scanned.subject.tenant, (data.redaction, set()))
        old.unfinished[scanned.subject.tenant] = run, threads | set(data.threads)
    elif isinstance(data, TurnsExpired):
        old.unfinished.pop(scanned.subject.tenant, None)


async def let_old_turns_go(runtime: Runtime, at: datetime, on_progress: OnProgress = no_progress) -> Counter[str]:
    """Deletes turns that are too old, searches for remains, and appends a receipt for each tenant; returns counts.

    The next run finishes a run that was killed. Raises RebuildRunning, LogUnavailable, DatabaseUnavailable,
    NotProjectedInTime, EventTooLarge.
    """
    await runtime.wait_until_projected()
    old, counts = await find_old(runtime, at, on_progress), Counter(turns=0, conversations=0, memories=0, hits=0)
    for tenant in old.tenants:
        talks, texts = old.threads(tenant), dict[str, None]()
        receipt = TurnsExpired(redaction=old.unfinished[tenant][0] if tenant in old.unfinished else uuid4())
        for first in range(0, len(talks), THREADS_AT_ONCE):
            batch = talks[first : first + THREADS_AT_ONCE]
            async with alone(runtime):
                leaving = await _planned(runtime, old, tenant, batch)
                receipt = await _carry_out(runtime, tenant, leaving, receipt)
            texts.update(dict.fromkeys(list(leaving.texts)[: max(MOST_CANDIDATES - len(texts), 0)]))
            on_progress(first + len(batch), len(talks))
        scan, searched = await _scanned(runtime, list(texts), on_progress)
        result = {"scanned": dict(scan.places), "strings_searched": searched, "hits": scan.total}
        receipt = receipt.model_copy(update={**result, "threads": (), "found_in": dict(scan.recorded) or None})
        await runtime.log.append(receipt_event(tenant, receipt))
        counts.update(turns=receipt.turns, conversations=receipt.conversations, memories=receipt.memories)
        counts.update(hits=scan.total)
    return counts


async def _planned(runtime: Runtime, old: Old, tenant: str, batch: Sequence[str]) -> Leaving:
    """Returns the changes to these conversations, their forks, and the memories of the people who speak in them."""
    forks: dict[str, ThreadForked] = {}
    async for stored in runtime.log.read([tenant_type_filter(tenant, "thread_forked")]):
        with contextlib.suppress(InvalidEvent):
            event = recorded(stored).event
            if isinstance(event.data, ThreadForked):
                forks[event.thread] = event.data
    every = [name for name in batch if not name.startswith(OWN_THREADS)]
    for name in every:
        every += [fork for fork, data in forks.items() if data.parent == name and fork not in every]
    leaving, gone = Leaving(), dict[str, Gone | None]()
    leaving.threads.update(dict.fromkeys(batch))

    async def plan(thread: str) -> None:
        fork, before = forks.get(thread), None
        if fork is not None and fork.parent in every:
            if fork.parent not in gone:
                await plan(fork.parent)
            parent = gone[fork.parent]
            before = parent if parent and parent.first <= fork.at_seq else None
        gone[thread] = await _plan_conversation(runtime, old.ages, tenant, thread, before, leaving)

    for thread in every:
        if thread not in gone:
            await plan(thread)
    users = {user for name in batch for user in old.turns.get((tenant, name), ()) if user is not None}
    memories = {memory_thread(user) for user in users} | {name for name in batch if name.startswith((MEMORIES, SHADOW))}
    async with runtime.pool.connection() as conn:
        for user in sorted(users):
            known = await rows.known_threads(conn, Person(tenant, user))
            memories |= {name for name in known if name.startswith(SHADOW)}
    for thread in sorted(memories):
        await _plan_memories(runtime, old.ages, tenant, thread, leaving)
    return leaving


async def _plan_conversation(
    runtime: Runtime, ages: Ages, tenant: str, thread: str, begins_with: Gone | None, leaving: Leaving
) -> Gone | None:
    """Adds the changes to a conversation to `leaving`; returns its old turns. begins_with: the old turns of its parent,
    if it is a fork."""
    head = await runtime.log.thread_head(tenant, thread)
    events = [entry async for entry in runtime.log.read_thread(tenant, thread)]
    lasting = [entry for entry in events if isinstance(entry.event.data, LASTING)]
    if lasting and all(ages.has_old(entry) for entry in lasting):
        leaving.ends[thread] = head
        for entry in events:
            leaving.add(entry, entry.event if is_clear(entry.event) else None)
        return _old_turns(ages, lasting, begins_with, leaving)
    async with runtime.pool.connection() as conn:
        if await restored_if_archived(runtime, conn, tenant, thread):
            events = [entry async for entry in runtime.log.read_thread(tenant, thread)]
    gone, signer = _old_turns(ages, events, begins_with, leaving), runtime.log.signer

    def sign(encoding: str, data: bytes) -> bytes:
        return signer.value_signature(tenant, encoding.encode() + b"\0" + data) if signer else b""

    outcome = outcomes(ages, gone, begins_with, sign)
    for entry in events:
        leaving.add(entry, outcome(entry))
    away = {entry.seq for entry in leaving.removed}
    for entry in events:  # events that replaced a removed event
        if isinstance(entry.event.data, EventRedacted) and entry.event.data.seq in away:
            leaving.add(entry, None)
    return gone


def _old_turns(ages: Ages, events: Sequence[Recorded], begins_with: Gone | None, leaving: Leaving) -> Gone | None:
    turns = [entry for entry in events if isinstance(entry.event.data, TurnRecorded)]
    old = [entry for entry in turns if ages.has_old(entry)]
    young = [entry.event.data for entry in turns if not ages.has_old(entry)]
    said = "\0".join(said_in(data) for data in young if isinstance(data, TurnRecorded))
    texts = dict.fromkeys(begins_with.texts if begins_with else ())
    texts.update(dict.fromkeys(text for entry in old for text in sentences_of(entry.event)))
    only = tuple(text for text in texts if comparable([text]) not in said)
    leaving.turns += len(old)
    leaving.texts.update(dict.fromkeys(only))
    seqs = [*(entry.seq for entry in old), *((begins_with.first, begins_with.last) if begins_with else ())]
    return Gone(min(seqs), max(seqs), only) if seqs else None


async def _plan_memories(runtime: Runtime, ages: Ages, tenant: str, thread: str, leaving: Leaving) -> None:
    events = [entry async for entry in runtime.log.read_thread(tenant, thread)]
    gone, outcome = memory_outcomes(ages, events)
    for entry in events:
        leaving.add(entry, outcome(entry))
    about = {"source": SOURCE, "tenant": tenant, "thread": thread}
    user = next((entry.event.user for entry in events if entry.event.user is not None), None)
    leaving.forgotten += [
        Event(id=uuid5(memory, f"retention {thread}"), user=user, data=MemoryForgotten(memory_id=memory), **about)
        for memory in sorted(gone)
    ]


async def _carry_out(runtime: Runtime, tenant: str, leaving: Leaving, receipt: TurnsExpired) -> TurnsExpired:
    """Changes the log and the read models as planned; returns the receipt with the counts of this batch added."""
    log = runtime.log
    for thread, head in list(leaving.ends.items()):
        ending = Event(source=SOURCE, tenant=tenant, thread=thread, data=Erased(reason="older than retention_days"))
        try:
            await log.append(ending, expected=head)
        except WrongExpectedVersion:
            leaving.keep_whole(thread)
    counts = {
        "turns": receipt.turns + leaving.turns,
        "conversations": receipt.conversations + len(leaving.ends),
        "events": receipt.events + len(leaving.removed),
        "replaced": receipt.replaced + len(leaving.replaced),
        "memories": receipt.memories + len(leaving.forgotten),
    }
    begun = receipt.model_copy(update={**counts, "threads": tuple(leaving.threads), "hits": None})
    if log.keyring is not None:
        await log.keyring.prefetch_current(
            owners_to_seal(change.replaced for change in leaving.replaced if change.replaced)
        )
    carriers = [
        carrier(runtime, change.recorded, change.replaced, begun) for change in leaving.replaced if change.replaced
    ]
    await log.append_many([*carriers, *leaving.forgotten])
    await log.append(receipt_event(tenant, begun))
    await runtime.wait_until_projected()
    await log.end_readers()
    await _delete(runtime, leaving)
    await rebuild(runtime, tenant, list(leaving.threads))
    went = [*leaving.removed, *(change.recorded for change in leaving.replaced)]
    await clear_caches(runtime, tenant, list(leaving.threads), [entry.event for entry in went])
    return receipt.model_copy(update=counts)


async def _delete(runtime: Runtime, leaving: Leaving) -> None:
    """Overwrites the events in the log. Turns and checkpoints come last, because the next run finds the conversations
    of a killed run by them."""
    known = await replacements(runtime.log.nc)
    last = {entry.seq for entry in leaving.removed if isinstance(entry.event.data, LASTING)}
    seqs = (
        {entry.seq for entry in leaving.removed}
        | {change.recorded.seq for change in leaving.replaced}
        | known.superseded
    )
    for part in (sorted(seqs - last), sorted(last)):
        for first in range(0, len(part), DELETED_AT_ONCE):
            await asyncio.gather(*(runtime.log.overwrite(seq) for seq in part[first : first + DELETED_AT_ONCE]))
    known.forget_all()  # it still lists replacements of events that no longer exist


async def _scanned(runtime: Runtime, texts: Sequence[str], on_progress: OnProgress) -> tuple[Scan, int]:
    """Searches tables, streams and buckets for sentences of the old turns; returns the result and the number of
    strings. It also finds a sentence if somebody else said the same."""
    scan, search_strings = Scan(), SearchStrings(chosen(texts, MOST_STRINGS))
    if search_strings.strings:
        async with runtime.pool.connection() as conn:
            await scan_tables(conn, search_strings, scan, on_progress)
        await scan_stream(runtime.log, search_strings, scan, on_progress)
        await scan_buckets(runtime.log, search_strings, scan)
    return scan, len(search_strings.strings)
