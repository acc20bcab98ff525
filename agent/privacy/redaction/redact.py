"""Strikes words or a complete turn from a conversation, and from everything derived from it that repeats the words.

The replacements are appended first. Then the replaced events are overwritten in the log, with the turn itself last, and
the read models of the threads are rebuilt. So repeating the call finishes a redaction that was killed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from unicodedata import normalize
from uuid import UUID, uuid4, uuid5

from psycopg import sql

from turnlog.agent.access.identity import Forbidden
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.privacy.erasure import rows
from turnlog.agent.privacy.erasure.erasure_plan import ErasureReach
from turnlog.agent.privacy.erasure.event_scan import Person
from turnlog.agent.privacy.erasure.scanning import Scan, scan_buckets, scan_files, scan_stream, scan_tables
from turnlog.agent.privacy.erasure.string_search import SearchStrings
from turnlog.agent.privacy.redaction.folding import runs_in
from turnlog.agent.privacy.redaction.replacing import (
    SOURCE,
    Struck,
    alone,
    carrier,
    clear_caches,
    rebuild,
    receipt_event,
)
from turnlog.agent.privacy.redaction.striking import (
    InvalidWords,
    Strike,
    comparable,
    is_derived,
    may_spell,
    said_in,
    strike_of,
    struck,
)
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import (
    Event,
    EventRedacted,
    Memory,
    MemoryForgotten,
    Recorded,
    ThreadForked,
    TurnRecorded,
    TurnRedacted,
)
from turnlog.events.errors import NotFound
from turnlog.events.read import replacements
from turnlog.events.sealing import owners_to_seal
from turnlog.events.stored import recorded
from turnlog.events.subjects import REDACTIONS, SHADOW, memory_thread, tenant_type_filter
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import PROJECTIONS

OF_THREADS = ("rows of the threads", "events of the threads")


@dataclass(frozen=True, slots=True)
class RedactionPreview:
    """The effects of a redaction, before it is carried out. seq: sequence of the turn. events: event type → number of
    events that are replaced or removed. memories: number of memories that are forgotten."""

    thread: str
    seq: int
    events: dict[str, int]
    memories: int


@dataclass(frozen=True, slots=True)
class RedactionPlan:
    """The changes of a redaction. threads: the conversation, its forks, and the memory threads of the people who speak
    in them, including trial derivations.

    memories: thread → ids of the memories that are forgotten.
    """

    tenant: str
    thread: str
    turn: Recorded
    strike: Strike
    threads: tuple[str, ...]
    struck: tuple[Struck, ...]
    memories: dict[str, set[UUID]]

    @property
    def preview(self) -> RedactionPreview:
        events = dict(Counter(change.recorded.event.type for change in self.struck))
        return RedactionPreview(self.thread, self.turn.seq, events, len(set().union(*self.memories.values())))


@dataclass(frozen=True, slots=True)
class RedactionReceipt:
    """The receipt of a redaction. seq: sequence of its event on `thread`. hits: place → number of occurrences that the
    search found. strings: place → the strings found there, masked."""

    thread: str
    seq: int
    data: TurnRedacted
    hits: dict[str, int]
    seconds: float
    strings: dict[str, list[str]] = field(default_factory=dict)

    def for_owner(self) -> "RedactionReceipt":
        """Returns the receipt without the hits in data of other people and tenants."""
        hits = {place: count for place, count in self.hits.items() if place.startswith(OF_THREADS)}
        data = self.data.model_copy(update={"hits": sum(hits.values()), "found_in": hits or None})
        return replace(self, data=data, hits=hits, strings={})


def words_to_strike(words: str | None, whole: bool) -> str | None:
    """Returns the words, or None for the complete turn. Raises InvalidWords unless exactly one of the two is given."""
    if (words is None) != whole:
        raise InvalidWords("say what to strike: either words, or the whole turn")
    return words


async def plan_redaction(
    runtime: Runtime, tenant: str, thread: str, seq: int, words: str | None = None, owner: str | None = None
) -> RedactionPlan:
    """Returns the changes that a redaction would make; changes nothing. words: None for the complete turn. owner: a
    user who may change only their own conversations; None for an operator.

    Raises NotFound if the sequence is not a turn of the thread or the turn does not contain the words and was not
    replaced before; InvalidWords; Forbidden if an owner's conversation has other speakers or was forked by others.
    """
    log = runtime.log
    turn = recorded(await log.stored(seq))
    if turn.event.tenant != tenant or turn.event.thread != thread or not isinstance(turn.event.data, TurnRecorded):
        raise NotFound(f"sequence {seq} is no turn of the conversation {thread!r}; `turnlog messages` shows them")

    def sign(encoding: str, data: bytes) -> bytes:
        return log.signer.value_signature(tenant, encoding.encode() + b"\0" + data) if log.signer else b""

    strike = strike_of(turn.event, seq, words, sign)
    if struck(turn.event, strike, seq) is None and (await replacements(log.nc)).at(seq) is None:
        raise NotFound(f"the turn at sequence {seq} does not say these words")
    threads = await _threads(runtime, tenant, thread, owner)
    if strike.whole:
        strike = await _distinctive(runtime, tenant, threads, strike)
    changes = [change for name in threads async for change in _struck_in(runtime, tenant, name, strike)]
    memories: dict[str, set[UUID]] = {}
    for change in changes:
        memory = getattr(change.recorded.event.data, "memory", None)
        if isinstance(memory, Memory):
            memories.setdefault(change.recorded.event.thread, set()).add(memory.id)
    return RedactionPlan(tenant, thread, turn, strike, tuple(threads), tuple(changes), memories)


async def _struck_in(runtime: Runtime, tenant: str, thread: str, strike: Strike) -> AsyncIterator[Struck]:
    async for entry in runtime.log.read_thread(tenant, thread):
        if is_derived(entry.event, strike):
            yield Struck(entry, None)
        elif (replaced := struck(entry.event, strike, entry.seq)) is not None:
            yield Struck(entry, replaced)


async def _distinctive(runtime: Runtime, tenant: str, threads: Iterable[str], strike: Strike) -> Strike:
    """Returns the strike without texts and runs that another user turn contains, so that "Thank you very much." is not
    struck elsewhere."""
    texts, runs = list(strike.texts), strike.runs
    for name in threads:
        async for entry in runtime.log.read_thread(tenant, name, types=("turn_recorded",)):
            if (
                entry.seq != strike.seq
                and isinstance(entry.event.data, TurnRecorded)
                and entry.event.data.role == "user"
            ):
                said = said_in(entry.event.data)
                texts = [text for text in texts if comparable([text]) not in said]
                runs -= {run for run, _, _ in runs_in(said)}
    return strike.only(texts, runs)


async def redact_turn(
    runtime: Runtime,
    tenant: str,
    thread: str,
    seq: int,
    reach: ErasureReach,
    words: str | None = None,
    by: str | None = None,
    reason: str | None = None,
    owner: str | None = None,
) -> RedactionReceipt:
    """Strikes words or a complete turn from the log and everything derived from it, then searches for remains.

    by: the person who asks for the redaction. reason: stored in the receipt. owner: see plan_redaction. A redaction
    cannot be undone; one that was killed is finished by a call with the same words. Raises the errors of
    plan_redaction, RebuildRunning, LogUnavailable, DatabaseUnavailable, NotProjectedInTime, EventTooLarge.
    """
    started = time.perf_counter()
    async with runtime.pool.connection() as conn:
        await restored_if_archived(runtime, conn, tenant, thread)
    await runtime.wait_until_projected()
    async with alone(runtime):
        plan = await plan_redaction(runtime, tenant, thread, seq, words, owner)
        begun = TurnRedacted(
            redaction=uuid4(),
            conversation=thread,
            turn_id=plan.turn.event.id,
            seq=seq,
            whole=words is None,
            by=by,
            reason=reason,
            events=sum(change.replaced is not None for change in plan.struck),
            removed=sum(change.replaced is None for change in plan.struck),
            memories=plan.preview.memories,
        )
        with reach.step("replacing events in the log"):
            await _replace(runtime, plan, begun)
        with reach.step("rebuilding the threads"):
            await rebuild(runtime, tenant, plan.threads)
        await clear_caches(runtime, tenant, plan.threads, (change.recorded.event for change in plan.struck))
        with reach.step("searching for what is left"):
            scan, count = await _scanned(runtime, plan, reach)
    data = begun.model_copy(
        update={
            "scanned": dict(scan.places),
            "strings_searched": count,
            "hits": scan.total,
            "found_in": dict(scan.recorded) or None,
        }
    )
    done = await runtime.log.append(receipt_event(tenant, data))
    return RedactionReceipt(REDACTIONS, done.seq, data, dict(scan.hits), time.perf_counter() - started, scan.strings)


async def _threads(runtime: Runtime, tenant: str, thread: str, owner: str | None) -> list[str]:
    """Returns the conversation, its forks and their forks, and the memory threads of all people who speak there,
    including trial derivations. Raises Forbidden."""
    forks: dict[str, str] = {}
    async for stored in runtime.log.read([tenant_type_filter(tenant, "thread_forked")]):
        event = recorded(stored).event
        if isinstance(event.data, ThreadForked):
            forks[event.thread] = event.data.parent
    talks = [thread]
    for talk in talks:
        talks += [fork for fork, parent in forks.items() if parent == talk and fork not in talks]
    people: dict[str, None] = {}
    for talk in talks:
        async for entry in runtime.log.read_thread(tenant, talk):
            if entry.event.user is not None:
                people.setdefault(entry.event.user)
    if owner is not None and people.keys() - {owner}:
        raise Forbidden("others speak in this conversation or forked it; an operator can strike words from it")
    memories = [memory_thread(user) for user in people]
    async with runtime.pool.connection() as conn:
        known = [await rows.known_threads(conn, Person(tenant, user)) for user in people]
    shadows = sorted(name for names in known for name in names if name.startswith(SHADOW))
    return [*talks, *memories, *shadows]


async def _replace(runtime: Runtime, plan: RedactionPlan, begun: TurnRedacted) -> None:
    """Appends the replacements, then overwrites the events that they replace. The turn comes last, so that a repeated
    call after a crash still finds it."""
    log, tenant = runtime.log, plan.tenant
    if log.keyring is not None:
        await log.keyring.prefetch_current(owners_to_seal(change.replaced for change in plan.struck if change.replaced))
    carriers = [carrier(runtime, change.recorded, change.replaced, begun) for change in plan.struck if change.replaced]
    sources = (plan.turn.event.id,) if begun.whole else ()
    forgotten = [
        Event(
            id=uuid5(memory, f"redacted {begun.turn_id}"),
            source=SOURCE,
            tenant=tenant,
            thread=name,
            user=next(change.recorded.event.user for change in plan.struck if change.recorded.event.thread == name),
            data=MemoryForgotten(memory_id=memory, source_ids=sources),
        )
        for name, ids in plan.memories.items()
        for memory in sorted(ids)
    ]
    await log.append_many([*carriers, *forgotten])
    await log.append(receipt_event(tenant, begun))
    await runtime.wait_until_projected()
    await log.end_readers()
    replaced = {change.recorded.seq for change in plan.struck} | (await replacements(log.nc)).superseded
    for seq in sorted(replaced, key=lambda seq: (seq == plan.turn.seq, seq)):
        await log.overwrite(seq)


async def _scanned(runtime: Runtime, plan: RedactionPlan, reach: ErasureReach) -> tuple[Scan, int]:
    """Returns the result of the search and the number of strings. Long strings are searched for everywhere; short
    strings, which occur by chance, only in the rows and events of the threads. Events that may contain the strings in
    other spellings are counted too; these spellings cannot be struck."""
    scan = Scan()
    searched = plan.strike.searched
    search_strings = SearchStrings([normalize(form, text) for text in searched for form in ("NFC", "NFD")])
    async with runtime.pool.connection() as conn:
        for table, count in (await _left(conn, plan)).items():
            scan.note("tables of the threads", f"{OF_THREADS[0]} in {table}", count)
        if search_strings.strings:
            await scan_tables(conn, search_strings, scan, lambda done, total: None)
    left, alike = 0, list[int]()
    for thread in plan.threads:
        async for entry in runtime.log.read_thread(plan.tenant, thread):
            if is_derived(entry.event, plan.strike) or struck(entry.event, plan.strike, entry.seq) is not None:
                left += 1
            elif may_spell(entry.event, plan.strike) and not isinstance(entry.event.data, EventRedacted):
                alike.append(entry.seq)
    scan.note("threads of the log", OF_THREADS[1], left)
    if alike:
        scan.note("threads of the log", f"{OF_THREADS[1]} that may spell them otherwise: {alike[:20]}", len(alike))
    if search_strings.strings:
        await scan_stream(runtime.log, search_strings, scan, lambda done, total: None)
        await scan_buckets(runtime.log, search_strings, scan)
        await asyncio.to_thread(scan_files, list(reach.files()), search_strings, scan, lambda done, total: None)
    return scan, len(searched)


async def _left(conn: Connection, plan: RedactionPlan) -> dict[str, int]:
    """Returns table → number of rows of the threads that still contain the words."""
    counts: dict[str, int] = {}
    for table in (table for projection in PROJECTIONS for table in projection.tables):
        if "thread_id" in table.columns:
            query = sql.SQL("SELECT t::text FROM {} t WHERE tenant = %s AND thread_id = ANY(%s)").format(
                sql.Identifier(table.name)
            )
            said = conn.cursor().stream(query, (plan.tenant, list(plan.threads)))
            counts[table.name] = sum([plan.strike.without(text) != text async for (text,) in said])
    return counts
