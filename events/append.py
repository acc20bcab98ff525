"""Appends events to the log: single events with group commit, or many events in atomic batches.

If a reply is lost, the threads are read back to see which event ids are stored. An id that is already stored is not
stored again; its first sequence is returned.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from nats.aio.client import Client
from nats.errors import Error as NatsError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from turnlog.events.contracts import Event, ThreadDeleted
from turnlog.events.errors import WAYS_OUT, GapInLog, LogClosed, LogUnavailable, OtherLog, WrongExpectedVersion, cause
from turnlog.events.publish import (
    DUPLICATE,
    PASSING,
    STALE_EXPECTATION,
    Appended,
    Key,
    Outgoing,
    Refused,
    explain,
    outgoing,
    publish,
)
from turnlog.events.read import read_to
from turnlog.events.sealing import Keyring, owners_to_seal
from turnlog.events.signing import Signer
from turnlog.events.stream import DUPLICATE_WINDOW_S
from turnlog.events.subjects import parse_stored, thread_filter

MAX_FILTERS = 200
DECIDING_S = 60.0


async def recently_stored(nc: Client, threads: Sequence[tuple[str, str]]) -> dict[Key, int]:
    """Returns the first sequence of each event of these (tenant, thread) pairs that was stored within the deduplication
    window plus a minute.

    It reads only headers. Raises GapInLog if NATS fails during the read.
    """
    since = datetime.now(UTC) - timedelta(seconds=DUPLICATE_WINDOW_S + 60)
    return await _ids(nc, threads, since)


async def all_stored(nc: Client, threads: Sequence[tuple[str, str]], start_seq: int = 1) -> dict[Key, int]:
    """Returns the first sequence of each event of these threads from start_seq on. Raises GapInLog."""
    return await _ids(nc, threads, None, start_seq)


async def _ids(
    nc: Client, threads: Sequence[tuple[str, str]], since: datetime | None, start_seq: int = 1
) -> dict[Key, int]:
    seqs: dict[Key, int] = {}
    filters = sorted({thread_filter(tenant, thread) for tenant, thread in threads})
    for start in range(0, len(filters), MAX_FILTERS):
        part = filters[start : start + MAX_FILTERS]
        async for stored in read_to(nc, part, start_seq, headers_only=True, since=since):
            if stored.message_id is not None:
                subject = parse_stored(stored.subject)
                seqs.setdefault(Key(subject.tenant, subject.thread_token, stored.message_id), stored.seq)
    return seqs


MAX_BATCH = 1_000
MAX_BATCH_BYTES = 16 * 1024 * 1024
# Up to this many events are faster one by one, because the server stages an atomic batch in separate files, with about
# six disk syncs.
FEW = 5
RETRY_WAIT_S = 0.25
SLOWEST_BYTES_PER_S = 4 * 1024 * 1024
Screen = Callable[[Sequence[Event]], Awaitable[list[Event]]]
LookUp = Callable[[Client, Sequence[tuple[str, str]]], Awaitable[dict[Key, int]]]
_OUTCOME_OPEN = "The events may or may not be stored: append them again with the same ids, which never stores one twice"
_UNKNOWN_OUTCOME = (NatsError, TimeoutError, OSError, GapInLog)


async def unchanged(events: Sequence[Event]) -> list[Event]:
    return list(events)


class Appender:
    """Writes to the stream. timeout_s: the limit for storing one batch with all retries; a call with several batches
    may take longer. ack_s: the limit of one request to the server; a large request gets one more second for each
    SLOWEST_BYTES_PER_S bytes.

    keyring: seals the personal fields of users' events; without a keyring they are written unencrypted.
    screen: a function that is applied to events before they are encoded; an append raises the errors of this function.
    signer: signs the events that need a signature.
    """

    def __init__(
        self,
        nc: Client,
        timeout_s: float = 30.0,
        ack_s: float = 2.0,
        keyring: Keyring | None = None,
        screen: Screen = unchanged,
        signer: Signer | None = None,
    ) -> None:
        self._nc, self._timeout_s, self._ack_s, self.keyring = nc, timeout_s, ack_s, keyring
        self.screen, self._signer = screen, signer
        self._other_log: str | None = None
        self._floor = 0
        self._queue: list[tuple[Outgoing, asyncio.Future[Appended]]] = []
        self._flusher: asyncio.Task[None] | None = None

    def refuse(self, why: str) -> None:
        """Refuses every append from now on, because the read models were made from another log. why: the text of the
        OtherLog that appends raise."""
        self._other_log = why

    def allow(self, head: int) -> None:
        """Allows appends. head: the log's last sequence. A new event at this or a smaller sequence means that another
        log has replaced this one."""
        self._floor = max(self._floor, head) if self._other_log is None else head
        self._other_log = None

    def assert_same_log(self) -> None:
        """Raises OtherLog if appends are refused."""
        if self._other_log is not None:
            raise OtherLog(self._other_log)

    async def append(self, event: Event, expected: int | None = None) -> Appended:
        """Stores one event. More than FEW concurrent calls without `expected` share a disk sync (group commit).

        expected: the thread's last sequence that the caller knows, 0 for a new thread.
        Raises InvalidEvent, EventTooLarge, WrongExpectedVersion, LogFull, LogUnavailable, LogClosed, KeyUnavailable.
        """
        [out] = await self._all_outgoing([event], expected)
        if expected is not None:
            return (await self._store([out]))[0]
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._queue.append((out, future))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return await future

    async def append_many(
        self, events: Sequence[Event], expected: int | None = None, fresh: bool = False
    ) -> list[Appended]:
        """Stores events in order, in atomic batches of at most MAX_BATCH events and MAX_BATCH_BYTES bytes.

        expected: the last sequence of the first event's thread. Each batch is stored entirely or not at all; the result
        has one entry per event. Raises the same errors as `append`; earlier batches then stay stored.
        fresh: True if no earlier call sent these ids, so that a wrong `expected` raises at once, without reading back.
        """
        outs = await self._all_outgoing(events, expected)
        done: list[Appended] = []
        for batch in _batches(outs):
            done.extend(await self._store(batch, fresh=fresh))
        return done

    async def append_in_order(self, events: Sequence[Event], last_deletion: int | None = None) -> list[Appended]:
        """Appends events like append_many, but sends up to FEW events one by one. After an error or a crash, the first
        events may be stored and the others not.

        The events must be of one thread and valid without the events that follow. last_deletion: the sequence of the
        thread's last deletion that the caller knows, 0 for none; after a later deletion no more events are stored, and
        WrongExpectedVersion is raised.
        """
        outs = await self._all_outgoing(events)
        if last_deletion is not None:
            outs = [out._replace(expected=last_deletion, expected_type=ThreadDeleted().type) for out in outs]
        done: list[Appended] = []
        for batch in _batches(outs) if len(events) > FEW else ([out] for out in outs):
            done.extend(await self._store([batch[0], *(out._replace(expected=None) for out in batch[1:])]))
        return done

    async def append_atomic(self, events: Sequence[Event]) -> bool:
        """Stores the events as one atomic batch, or none of them if any of their ids was stored on their thread within
        the server's deduplication window (DUPLICATE_WINDOW_S seconds). An id that was stored earlier is stored again,
        and read models ignore the repetition.

        Use it for results that belong together if a second attempt may repeat only some of their ids. Returns True if
        they were stored now; False if an id was found on the log, also if this call stored the events and the server's
        reply was lost. Raises ValueError for more than MAX_BATCH events, and the same errors as `append`.
        """
        outs = await self._all_outgoing(events)
        if len(outs) > MAX_BATCH:
            raise ValueError(f"{len(outs)} events are more than one atomic batch of {MAX_BATCH} can hold")
        return not any(done.duplicate for done in await self._store(outs, whole=True))

    async def _fetch_keys(self, events: Sequence[Event]) -> None:
        """Fetches the keys of the events' users in one query. Raises KeyUnavailable."""
        if self.keyring is not None:
            await self.keyring.prefetch_current(owners_to_seal(events))

    async def _all_outgoing(self, events: Sequence[Event], expected: int | None = None) -> list[Outgoing]:
        """Screens and encodes the events. expected: the expected sequence for the first event."""
        self._assert_usable()
        events = await self.screen(events)
        await self._fetch_keys(events)
        return [self._outgoing(event, None if at else expected) for at, event in enumerate(events)]

    def _assert_usable(self) -> None:
        if self._nc.is_closed:
            raise LogClosed("this Log is closed, and nothing was stored; connect a new one and append there")
        self.assert_same_log()

    def _outgoing(self, event: Event, expected: int | None) -> Outgoing:
        self._assert_usable()
        return outgoing(event, expected, self._nc.max_payload, self.keyring, self._signer)

    async def _flush(self) -> None:
        while self._queue:
            size = len(next(_batches([out for out, _ in self._queue[:MAX_BATCH]])))
            taken, self._queue = self._queue[:size], self._queue[size:]
            if len(taken) <= FEW:
                await asyncio.gather(*(self._settled([out]) for out in taken))
            else:
                await self._settled(taken)

    async def _settled(self, taken: list[tuple[Outgoing, "asyncio.Future[Appended]"]]) -> None:
        try:
            outcomes: Sequence[Appended | Exception] = await self._store([out for out, _ in taken])
        except Exception as error:  # is passed to the waiting callers
            outcomes = [error] * len(taken)
        for (_, future), outcome in zip(taken, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def _store(self, batch: list[Outgoing], whole: bool = False, fresh: bool = False) -> list[Appended]:
        """Sends the events until all are known to be stored; raises an error if one cannot be stored.

        whole: if True, returns as soon as one of the events is found to be stored already.
        fresh: applies only to the first try, because later tries may find the events that it stored.
        """
        deadline = time.monotonic() + self._timeout_s
        known: dict[Key, Appended] = {}
        missing = list({out.key: out for out in batch}.values())
        while missing:
            known |= await self._attempt(missing, deadline, fresh)
            fresh = False
            missing = [out for out in missing if out.key not in known]
            if whole and known:
                break
        return [known[out.key] for out in batch if out.key in known]

    async def _attempt(self, missing: list[Outgoing], deadline: float, fresh: bool) -> dict[Key, Appended]:
        try:
            self.assert_same_log()
            size, floor = sum(len(out.body) for out in missing), self._floor
            done = await publish(self._nc, missing, self._ack_s + size / SLOWEST_BYTES_PER_S)
            self._assert_after(floor, done[-1])
            return {out.key: appended for out, appended in zip(missing, done, strict=True)}
        except Refused as refusal:
            if fresh and refusal.code == STALE_EXPECTATION:
                raise explain(missing[0], refusal) from None
            return await self._after_refusal(missing, refusal, deadline)
        except _UNKNOWN_OUTCOME as error:
            await self._pause(deadline, error)
            return await self._read_back(missing, deadline)

    def _assert_after(self, floor: int, done: Appended) -> None:
        """Raises OtherLog if a new event was stored at a sequence that the log had already reached before."""
        if done.duplicate:
            return
        if done.seq <= floor:
            self.refuse(
                f"NATS stored a new event at sequence {done.seq:,}, although the log had reached {floor:,}: the "
                "stream was replaced or an older backup restored while this process ran. "
                f"The event is in that log. {WAYS_OUT}"
            )
            self.assert_same_log()
        self._floor = max(self._floor, done.seq)

    async def _after_refusal(self, missing: list[Outgoing], refusal: Refused, deadline: float) -> dict[Key, Appended]:
        """Returns which events of a refused batch are stored. Raises an error if a refusal is final and none of them is
        stored.

        A retry may be refused because its first try was stored: as a duplicate, or because the thread has changed. If
        none of the threads has the duplicate, it is on another thread, and the events are sent with other message ids.
        """
        if refusal.code in PASSING:
            await self._pause(deadline, refusal)
            return await self._read_back(missing, deadline)
        if refusal.code not in (DUPLICATE, STALE_EXPECTATION):
            raise explain(missing[0], refusal)
        stored = await self._read_back(missing, deadline) or await self._read_back(missing, deadline, all_stored)
        if stored:
            return stored
        if refusal.code == STALE_EXPECTATION:
            raise explain(missing[0], refusal)
        await self._pause(deadline, refusal)
        return await self._attempt([out.under_another_id() for out in missing], deadline, fresh=False)

    async def _read_back(
        self, missing: list[Outgoing], deadline: float, look_up: LookUp = recently_stored
    ) -> dict[Key, Appended]:
        """Returns which of the missing events are stored. look_up: all_stored also finds events that are older than the
        deduplication window, as after a late retry or with a wrong clock."""
        wanted = {out.key for out in missing}
        while True:
            try:
                async with asyncio.timeout(max(self._ack_s, deadline - time.monotonic())):
                    seqs = await look_up(self._nc, [(out.tenant, out.thread) for out in missing])
                return {key: Appended(key.id, seq, duplicate=True) for key, seq in seqs.items() if key in wanted}
            except _UNKNOWN_OUTCOME as error:
                await self._pause(deadline, error)

    async def _pause(self, deadline: float, error: Exception) -> None:
        if self._nc.is_closed:
            raise LogClosed(
                f"this Log was closed before NATS acknowledged ({cause(error)}). {_OUTCOME_OPEN}"
            ) from error
        self.assert_same_log()
        if time.monotonic() > deadline:
            raise LogUnavailable(
                f"NATS did not acknowledge within {self._timeout_s:g} s ({cause(error)}). {_OUTCOME_OPEN}"
            ) from error
        await asyncio.sleep(RETRY_WAIT_S)


def deciding_again() -> AsyncRetrying:
    """Returns tenacity attempts that repeat a decision after a concurrent write. They raise WrongExpectedVersion after
    DECIDING_S seconds."""
    return AsyncRetrying(
        retry=retry_if_exception_type(WrongExpectedVersion),
        stop=stop_after_delay(DECIDING_S),
        wait=wait_random_exponential(0.002, max=0.1),
        reraise=True,
    )


def _batches(outs: list[Outgoing]) -> Iterator[list[Outgoing]]:
    start = size = 0
    for at, out in enumerate(outs):
        if at - start >= MAX_BATCH or (at > start and size + len(out.body) > MAX_BATCH_BYTES):
            yield outs[start:at]
            start, size = at, 0
        size += len(out.body)
    if start < len(outs):
        yield outs[start:]
