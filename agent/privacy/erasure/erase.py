"""Erases a person from every read model, cache, bucket and archive, and from the log itself.

Every step does only the work that is left, so that an erasure that was killed can be run again from the beginning. The
keys are destroyed first: from then on, the words in the log that they sealed cannot be read.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from turnlog.agent.answering.receipts import GivenReceipts
from turnlog.agent.conversations.archive.files import files_of
from turnlog.agent.conversations.sessions.bucket import Bucket
from turnlog.agent.privacy.erasure import rows
from turnlog.agent.privacy.erasure.erasure_plan import ErasureScope, Plan, decoded, is_of_threads
from turnlog.agent.privacy.erasure.erasure_receipt import SOURCE, Receipt, receipt_event
from turnlog.agent.privacy.erasure.event_scan import (
    Person,
    ScannedEvent,
    are_of,
    events_of,
    find_traces,
    named_threads,
    scanned_event,
)
from turnlog.agent.privacy.erasure.scanning import (
    Scan,
    bucket_entries,
    scan_buckets,
    scan_files,
    scan_stream,
    scan_tables,
)
from turnlog.agent.privacy.erasure.unsealed import Ending, is_late, must_go, quotes, without_derived
from turnlog.agent.privacy.keys import key_admin
from turnlog.agent.privacy.keys.key_stream import KeyStream
from turnlog.agent.privacy.keys.user_keys import KeyStore
from turnlog.events.contracts import Erased, Event, UserErased
from turnlog.events.errors import NotFound
from turnlog.events.log import Log, nats_errors
from turnlog.events.progress import OnProgress
from turnlog.events.subjects import RECEIPT_BUCKET, former_thread, thread_token
from turnlog.projectors.engine.database import connect, lock_key
from turnlog.projectors.models.registry import BY_NAME, PROJECTIONS
from turnlog.projectors.rebuild.replay import rebuild_thread, retry
from turnlog.projectors.rebuild.shadow import discard_abandoned

AT_ONCE = 16
REDACTION = "redaction"  # the lock that a redaction holds exclusively and erasures share


@dataclass(slots=True)
class _Done:
    """The progress of an erasure. marks: thread → sequence of its `erased` event. requests: ids of answers that were
    requested before that event. through: the sequence up to which shared threads were overwritten."""

    counts: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    requests: set[UUID] = field(default_factory=set)
    through: int = 0

    def add(self, what: str, count: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + count


async def erase(at: ErasureScope, plan: Plan, reason: str | None = None, is_full: bool = False) -> Receipt:
    """Erases the person, scans for remains, and appends the receipt. is_full: rewrite the tables (VACUUM FULL), which
    locks each of them.

    Waits for a running redaction, because its replacements would be sealed with a new key of the person. Raises
    LogUnavailable, DatabaseUnavailable, NotProjectedInTime; the erasure can then be run again.
    """
    async with await connect(at.runtime.database_url) as conn:
        await conn.execute("SELECT pg_advisory_lock_shared(%s, -1)", (lock_key(REDACTION, "build"),))
        return await _erase(at, plan, reason, is_full)


async def _erase(at: ErasureScope, plan: Plan, reason: str | None, is_full: bool) -> Receipt:
    started, done = time.perf_counter(), _Done()
    shared = await _shared_rows(at, plan)
    keys = await _destroy_keys(at, plan.person)
    plan = await _as_of_now(at, plan)
    await _clear_caches(at, plan, done)
    await _append_erased(at, plan, done)
    await _overwrite(at, plan, done)
    await _rebuild(at, plan, done)
    await _purge_buckets(at, plan)
    await _catch_late(at, plan, done)
    async with at.runtime.pool.connection() as conn:  # again: results may have been stored since
        done.add("cached answers", await rows.clear_answers(conn, plan.person, plan.traces.threads))
    await _vacuum(at, is_full)
    scan = await _scanned(at, plan, done)
    after = await _shared_rows(at, plan)
    for table, count in plan.rows.items():
        kept = Counter(shared.get(table)) & Counter(after.get(table))
        done.add(f"rows of {table}", count - kept.total())
    before = plan.found_before
    data = UserErased(
        reason=reason,
        keys_destroyed=keys,
        threads=len(plan.traces.threads),
        counts={name: count for name, count in done.counts.items() if count},
        scanned=dict(scan.places),
        strings_searched=len(plan.search_strings.strings),
        hits=scan.total,
        found_in={**before, **scan.recorded} or None,
    )
    event = receipt_event(plan.person, data)
    seq = (await at.runtime.log.append(event)).seq
    return Receipt(
        thread=event.thread,
        seq=seq,
        data=data,
        hits=dict(scan.hits),
        seconds=time.perf_counter() - started,
        passed_over=tuple(plan.passed_over),
        strings=scan.strings,
        before=before,
        shared_threads=tuple(sorted(plan.traces.shared)),
    )


async def _shared_rows(at: ErasureScope, plan: Plan) -> dict[str, list[str]]:
    async with at.runtime.pool.connection() as conn:
        return await rows.shared_rows(conn, plan.person, sorted(plan.traces.shared))


async def _as_of_now(at: ErasureScope, plan: Plan) -> Plan:
    """Returns the plan, updated with the threads and speakers that are new since it was made. Time may have passed,
    because somebody had to confirm the plan."""
    traces = await find_traces(at.runtime.log, plan.person, plan.traces.threads, after=plan.head)
    archives = {*plan.archives, *files_of(at.runtime.settings.archive, plan.person.tenant, traces.own)}
    traces.strays |= plan.traces.strays
    traces.unreadable |= plan.traces.unreadable
    return replace(plan, traces=traces, archives=tuple(sorted(archives)))


async def _destroy_keys(at: ErasureScope, person: Person) -> int:
    if not isinstance(at.runtime.log.keyring, KeyStore):  # nothing is encrypted
        return 0
    with at.reach.step("destroying keys"):
        async with at.runtime.pool.connection() as conn:
            stream = KeyStream(at.runtime.log.nc, at.runtime.log.keyring.keks)
            count = await key_admin.destroy(conn, stream, person.tenant, person.user)
    await at.runtime.log.keyring.refresh([(person.tenant, person.user)])
    return count


async def _clear_caches(at: ErasureScope, plan: Plan, done: _Done) -> None:
    """Clears the caches before the rows are removed, because the rows show which vectors and files belong to the
    person."""
    with at.reach.step("clearing caches"):
        async with at.runtime.pool.connection() as conn:
            threads = sorted(plan.traces.own), sorted(plan.traces.shared)
            cleared = await rows.clear_caches(conn, plan.person, *threads, list(plan.hashes))
        done.add("cached vectors", cleared.vectors)
        done.add("cached answers", cleared.answers)
        done.add("dead letters", cleared.letters)
        async with await connect(at.runtime.database_url) as conn:
            done.add("abandoned rebuilds", await discard_abandoned(conn))
        for path in plan.archives:
            file = (at.runtime.settings.archive / path).resolve()
            if file.is_relative_to(at.runtime.settings.archive.resolve()) and file.exists():
                file.unlink()
                done.add("archive files", 1)


async def _append_erased(at: ErasureScope, plan: Plan, done: _Done) -> None:
    """Appends `erased` to the person's own threads; a thread that already ends with it, as after a crash, does not get
    a second one."""
    person = plan.person
    with at.reach.step("emptying the read models") as progress:
        own = sorted(plan.traces.own)
        for number, thread in enumerate(own):
            head = await at.runtime.log.thread_head(person.tenant, thread)
            last = decoded(scanned_event(await at.runtime.log.stored(head))) if head else None
            if last is not None and isinstance(last.data, Erased):
                done.marks[thread] = head
            elif head or former_thread(thread):
                done.marks[thread] = (await at.runtime.log.append(_erased(person, thread))).seq
            progress(number + 1, len(own))
        await at.runtime.wait_until_projected()


def _erased(person: Person, thread: str) -> Event:
    data = Erased(reason="the user was erased")
    return Event(source=SOURCE, time=datetime.now(UTC), tenant=person.tenant, thread=thread, data=data)


async def _overwrite(at: ErasureScope, plan: Plan, done: _Done) -> None:
    """Overwrites those events in the log that stay readable after the keys were destroyed."""
    async with at.runtime.pool.connection() as conn:
        destroyed = await rows.destroyed_keys(conn, plan.person)
    head = done.through = await at.runtime.log.head()
    with at.reach.step("overwriting what is readable in the log") as progress:
        seqs, is_own = set(plan.traces.strays), are_of(plan.traces.own)
        async for scanned in events_of(at.runtime.log, plan.person.tenant, plan.traces.threads):
            thread = scanned.thread or ""
            if is_own(scanned):
                ending = Ending(plan.person.user, destroyed, done.marks.get(thread, head))
                if scanned.type == "answer_requested" and scanned.envelope and scanned.stored.seq <= ending.through:
                    with contextlib.suppress(ValueError):  # agents do not answer a request without a valid id
                        done.requests.add(UUID(str(scanned.envelope.get("id"))))
            else:
                ending = Ending(plan.person.user, destroyed, head, plan.traces.shared.get(thread, 0))
                await _retell_fork(at.runtime.log, scanned, ending, seqs)
            if must_go(scanned, ending) or quotes(scanned, ending, plan.search_strings):
                seqs.add(scanned.stored.seq)
        done.add("events overwritten", await _overwritten(at.runtime.log, sorted(seqs), progress))
        done.add("unreadable events passed over", len(plan.passed_over))


async def _retell_fork(log: Log, scanned: ScannedEvent, ending: Ending, seqs: set[int]) -> None:
    """Appends another person's fork of the thread again, without the summary with which it began, and marks the
    original for overwriting."""
    if scanned.type != "thread_forked" or scanned.user == ending.user or (event := decoded(scanned)) is None:
        return
    if (plain := without_derived(event)) is not None:
        await log.append(plain)
        seqs.add(scanned.stored.seq)


async def _overwritten(log: Log, seqs: Sequence[int], on_progress: OnProgress) -> int:
    count = 0
    for at in range(0, len(seqs), AT_ONCE):
        count += sum(await asyncio.gather(*(log.overwrite(seq) for seq in seqs[at : at + AT_ONCE])))
        on_progress(min(at + AT_ONCE, len(seqs)), len(seqs))
    return count


async def _rebuild(at: ErasureScope, plan: Plan, done: _Done) -> None:
    """Rebuilds shared threads, which then show tombstones for the person's turns, and threads that were parked. In read
    models that sum over threads, the parked events are applied again, as far as the log still has them."""
    async with at.runtime.pool.connection() as conn:
        stopped = await rows.parked(conn, plan.person, sorted(plan.traces.own))
    log, url, tenant = at.runtime.log, at.runtime.database_url, plan.person.tenant
    for projection, thread in ((BY_NAME[name], thread) for name, thread in stopped):
        if projection.per_thread:
            await rebuild_thread(log, url, projection, tenant, thread)
        else:
            await retry(log, url, projection, (tenant, thread_token(thread)))
    if plan.traces.shared:
        await at.runtime.wait_until_projected()
        with at.reach.step("rebuilding shared threads") as progress:
            await _rebuilt(at, plan.person, sorted(plan.traces.shared), progress)
        done.add("shared threads rebuilt", len(plan.traces.shared))


async def _rebuilt(at: ErasureScope, person: Person, threads: Sequence[str], on_progress: OnProgress) -> None:
    for number, thread in enumerate(threads):
        for projection in PROJECTIONS:
            if projection.per_thread:
                try:
                    await rebuild_thread(at.runtime.log, at.runtime.database_url, projection, person.tenant, thread)
                except NotFound:  # the log has no more events of the thread, so projectors do not remove its rows
                    await at.runtime.log.append(_erased(person, thread))
                    break
        on_progress(number + 1, len(threads))
    await at.runtime.wait_until_projected()


async def _purge_buckets(at: ErasureScope, plan: Plan) -> None:
    bucket = Bucket(at.runtime.log, plan.person.tenant)
    for thread in plan.traces.threads:
        await bucket.purge(thread)
    given_receipts = GivenReceipts(at.runtime)
    await given_receipts.forget(plan.person.tenant, plan.person.user)
    with nats_errors("cannot read the receipts that were given"):
        async for key, receipt in bucket_entries(at.runtime.log, RECEIPT_BUCKET):
            if is_of_threads(receipt, plan.person.tenant, plan.traces.shared):
                await given_receipts.remove(key)


async def _catch_late(at: ErasureScope, plan: Plan, done: _Done) -> None:
    """Erases late results: a model call that was running may have stored its result afterwards, perhaps in a new
    thread, such as that of the person's first memory or of a trial derivation."""
    marks = {**dict.fromkeys(plan.traces.shared, done.through), **done.marks}
    if not marks:
        return
    late: list[tuple[str, int]] = []
    with at.reach.step("looking for late results") as progress:
        begun = await named_threads(at.runtime.log, plan.person, after=min(marks.values()))
        async for scanned in events_of(
            at.runtime.log, plan.person.tenant, sorted({*marks, *begun}), min(marks.values())
        ):
            event = decoded(scanned)
            if event is None or scanned.stored.seq <= marks.get(event.thread, 0):
                continue
            if is_late(event, marks, done.requests):
                late.append((event.thread, scanned.stored.seq))
        if late:
            done.add("late results overwritten", await _overwritten(at.runtime.log, [seq for _, seq in late], progress))
            await at.runtime.wait_until_projected()
            await _rebuilt(at, plan.person, sorted({thread for thread, _ in late}), progress)


async def _vacuum(at: ErasureScope, is_full: bool) -> None:
    tables = rows.vacuumed_tables()
    with at.reach.step("vacuuming tables") as progress:
        async with at.runtime.pool.connection() as conn:
            for number, table in enumerate(tables):
                await rows.vacuum(conn, is_full, table)
                progress(number + 1, len(tables))
            if is_full:
                await rows.vacuum_statistics(conn)


async def _scanned(at: ErasureScope, plan: Plan, done: _Done) -> Scan:
    scan = Scan()
    async with at.runtime.pool.connection() as conn:
        for table, count in (await rows.left(conn, plan.person, done.marks)).items():
            scan.note("tables with rows of the person", f"rows left in {table}", count)
        if plan.search_strings.strings:
            with at.reach.step("scanning tables") as progress:
                await scan_tables(conn, plan.search_strings, scan, progress)
    if not plan.search_strings.strings:
        return scan
    if at.runtime.settings.nats_url is not None:
        with at.reach.step("scanning the stream") as progress:
            await scan_stream(at.runtime.log, plan.search_strings, scan, progress)
    await scan_buckets(at.runtime.log, plan.search_strings, scan)
    with at.reach.step("scanning files") as progress:
        await asyncio.to_thread(scan_files, list(at.reach.files()), plan.search_strings, scan, progress)
    return scan
