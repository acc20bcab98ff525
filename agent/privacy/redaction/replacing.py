"""The steps that a redaction and the deletion of old turns share: replace events of the log, then rebuild or remove
everything derived from them."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from turnlog.agent.answering.receipts import GivenReceipts
from turnlog.agent.conversations.archive.files import files_of
from turnlog.agent.conversations.sessions.bucket import Bucket
from turnlog.agent.privacy.erasure import rows
from turnlog.agent.privacy.erasure.erase import REDACTION
from turnlog.agent.privacy.erasure.event_scan import Person
from turnlog.agent.privacy.erasure.string_search import text_hashes
from turnlog.agent.runtime import Runtime
from turnlog.events.codec import encode
from turnlog.events.contracts import Event, EventRedacted, Recorded, TurnRedacted, TurnsExpired
from turnlog.events.subjects import OWN_THREADS, REDACTIONS
from turnlog.projectors.engine.database import connect, take_locks
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.build import RebuildRunning
from turnlog.projectors.rebuild.replay import rebuild_thread

SOURCE = "turnlog/redact"


@dataclass(frozen=True, slots=True)
class Struck:
    """An event that contains struck words. replaced: the event without them; None for a derived event, which is made
    again."""

    recorded: Recorded
    replaced: Event | None


@asynccontextmanager
async def alone(runtime: Runtime) -> AsyncIterator[None]:
    """Excludes rebuilds, erasures and other redactions while the block runs. A rebuild could bring the words back, and
    the replacements could be sealed with a new key of a person who is being erased. Raises RebuildRunning."""
    async with await connect(runtime.database_url) as conn:
        names = [projection.name for projection in PROJECTIONS]
        if not await take_locks(conn, [*names, REDACTION], "build", -1):
            raise RebuildRunning(
                "read models are being rebuilt or verified, a person is being erased, or another redaction runs; "
                "wait for it"
            )
        yield


def carrier(runtime: Runtime, of: Recorded, replaced: Event, begun: TurnRedacted | TurnsExpired) -> Event:
    """Returns the event that carries the replacement of an event of the log."""
    return Event(
        source=SOURCE,
        tenant=of.event.tenant,
        thread=of.event.thread,
        user=of.event.user,
        causation=getattr(begun, "turn_id", None),
        correlation=begun.redaction,
        data=EventRedacted(
            seq=of.seq,
            stored_at=of.stored_at,
            event_type=of.event.type,
            envelope=encode(replaced, runtime.log.keyring).decode(),
        ),
    )


def receipt_event(tenant: str, data: TurnRedacted | TurnsExpired) -> Event:
    """Returns the event that records that a run has begun, or what it did."""
    return Event(source=SOURCE, tenant=tenant, thread=REDACTIONS, correlation=data.redaction, data=data)


async def rebuild(runtime: Runtime, tenant: str, threads: Iterable[str]) -> None:
    """Rebuilds the rows of the threads in every read model except usage, whose rows sum over threads and contain no
    words."""
    await runtime.wait_until_projected()
    for thread in threads:
        if await runtime.log.thread_head(tenant, thread):
            for projection in PROJECTIONS:
                if projection.per_thread:
                    await rebuild_thread(runtime.log, runtime.database_url, projection, tenant, thread)


async def clear_caches(runtime: Runtime, tenant: str, threads: Sequence[str], struck: Iterable[Event]) -> None:
    """Removes vectors that no row needs any more, cached answers, stored answers of repeatable writes, copies of
    sessions, receipts of contexts, and archive files, whose conversations were restored or removed. struck: the
    original events, with their words."""
    events = list(struck)
    hashes = [digest for event in events for digest in text_hashes(event)]
    nobody = Person(tenant, f"redaction/{uuid4()}")  # has no rows, so only vectors that no row uses are removed
    async with runtime.pool.connection() as conn:
        await rows.clear_caches(conn, nobody, (), threads, hashes)
        for table in rows.vacuumed_tables():
            await rows.vacuum(conn, False, table)
    talks = [thread for thread in threads if not thread.startswith(OWN_THREADS)]
    for path in files_of(runtime.settings.archive, tenant, talks):
        (runtime.settings.archive / path).unlink(missing_ok=True)
    bucket, users = Bucket(runtime.log, tenant), {event.user for event in events}
    for thread in talks:
        await bucket.purge(thread)
    for user in users - {None}:
        await GivenReceipts(runtime).forget(tenant, str(user))
