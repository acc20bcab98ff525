"""The interface of the log for the rest of turnlog: connects, appends, reads and finds last sequences."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from cachetools import LRUCache
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from turnlog.events.append import Appender, Screen, all_stored, unchanged
from turnlog.events.client import LOST_SERVER, RobustClient, servers_of
from turnlog.events.contracts import Event, Recorded
from turnlog.events.errors import WAYS_OUT, InvalidEvent, LogUnavailable, NotFound, OtherLog, cause
from turnlog.events.publish import Appended
from turnlog.events.read import OrderedReader, check_replacements, read_to, replacements
from turnlog.events.redactions import READER
from turnlog.events.sealing import Keyring, key_ids_in
from turnlog.events.signing import Signer
from turnlog.events.stored import Stored, recorded
from turnlog.events.stream import NO_STREAM, StreamOptions, ensure_stream, log_id, overwrite
from turnlog.events.subjects import STREAM, parse_stored, partition_filter, thread_filter, thread_filters, turns_filter
from turnlog.events.tasks import within

CONNECT_TIMEOUT_S = 5.0
ANSWER_S = 5.0  # how many seconds the server has to reply
REMEMBERED_THREADS = 10_000
_OPTIONS: dict[str, Any] = {
    **LOST_SERVER,
    "reconnect_time_wait": 0.1,
    "allow_reconnect": True,
    "flusher_queue_size": 65_536,
}


async def connect_nats(
    url: str,
    name: str,
    on_closed: Callable[[], Awaitable[None]] | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Client:
    """Returns a connected client that reconnects without limit. Raises LogUnavailable if the first connection fails or
    takes too long."""
    nc = RobustClient()
    failures: list[Exception] = []

    async def on_error(error: Exception) -> None:
        """Collects errors until the client is connected. Without this callback nats-py would print a traceback for
        every lost connection."""
        if not nc.is_connected:
            failures.append(error)

    try:
        # Because of unlimited reconnects nats-py would also try the first connection without limit.
        await within(
            timeout_s, nc.connect(servers_of(url), name=name, error_cb=on_error, closed_cb=on_closed, **_OPTIONS)
        )
    except (NatsError, OSError, TimeoutError, ValueError) as error:  # ValueError: the port is not a number
        # A refused token is not always reported, because the server often closes the connection before its error is
        # read.
        refused = [failure for failure in failures if "Authorization" in str(failure)]
        why = cause([error, *failures, *refused][-1])
        raise LogUnavailable(
            f"cannot connect to NATS at {_without_secret(url)}: {why}. Start it with `turnlog up`, or set NATS_URL"
        ) from error
    except asyncio.CancelledError:
        if nc.is_connected:  # cancelled just after connecting
            await nc.close()
        raise
    return nc


@contextlib.contextmanager
def nats_errors(problem: str) -> Iterator[None]:
    """Raises LogUnavailable, which names the problem, for errors of NATS in the block, or OtherLog if the stream no
    longer exists."""
    try:
        yield
    except NotFoundError as error:
        if error.err_code == NO_STREAM:
            raise OtherLog(f"NATS no longer has the stream {STREAM}: it was deleted. {WAYS_OUT}") from error
        raise LogUnavailable(f"{problem}: {cause(error)}") from error
    except (NatsError, OSError, TimeoutError) as error:
        raise LogUnavailable(f"{problem}: {cause(error)}") from error


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of the log. id: the log's id, see events/stream.py. head: the last sequence, 0 if the log is empty."""

    id: str
    head: int


@dataclass(slots=True)
class Log:
    """One connection to the stream. Create it with Log.connect; close it when done.

    closed: set when the connection is closed for good; after a lost server the client reconnects.
    keyring: seals and opens personal fields; without a keyring events are written unencrypted and sealed events cannot
    be read. signer: signs events about access rights, and projectors check their signatures; without a signer nothing
    is checked.
    """

    nc: Client
    partitions: int
    appender: Appender
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    keyring: Keyring | None = None
    signer: Signer | None = None
    _partitions: LRUCache[tuple[str, str], int] = field(default_factory=lambda: LRUCache(REMEMBERED_THREADS))

    @classmethod
    async def connect(
        cls,
        url: str,
        options: StreamOptions,
        name: str = "turnlog",
        keyring: Keyring | None = None,
        screen: Screen = unchanged,
        signer: Signer | None = None,
    ) -> "Log":
        """Connects and creates or checks the stream. Raises LogUnavailable, StreamDrift."""
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        nc = await connect_nats(url, name, on_closed)
        try:
            partitions = await ensure_stream(nc.jetstream(), options)
        except (NatsError, OSError, TimeoutError) as error:
            await nc.close()
            raise LogUnavailable(f"JetStream does not answer at {_without_secret(url)}: {cause(error)}") from error
        except BaseException:
            await nc.close()
            raise
        check_replacements(nc, signer)
        appender = Appender(nc, keyring=keyring, screen=screen, signer=signer)
        return cls(nc, partitions, appender, closed, keyring, signer)

    @property
    def is_closed(self) -> bool:
        """Returns whether the connection is closed; `closed` can be awaited."""
        return bool(self.nc.is_closed)

    async def close(self) -> None:
        if not self.is_closed:
            await self.nc.close()

    def use_keys(self, keyring: Keyring | None) -> None:
        """Uses these keys from now on to seal and open personal fields."""
        self.keyring = self.appender.keyring = keyring

    def use_screen(self, screen: Screen) -> None:
        """From now on applies this function to events before they are encoded."""
        self.appender.screen = screen

    async def screened(self, events: Sequence[Event]) -> list[Event]:
        """Returns the events as they would be stored, for a caller that keeps a copy. Raises the errors of the
        screen."""
        return await self.appender.screen(events)

    async def append(self, event: Event, expected: int | None = None) -> Appended:
        return await self.appender.append(event, expected)

    async def append_many(
        self, events: Sequence[Event], expected: int | None = None, fresh: bool = False
    ) -> list[Appended]:
        return await self.appender.append_many(events, expected, fresh)

    async def append_in_order(self, events: Sequence[Event], last_deletion: int | None = None) -> list[Appended]:
        return await self.appender.append_in_order(events, last_deletion)

    async def append_atomic(self, events: Sequence[Event]) -> bool:
        return await self.appender.append_atomic(events)

    async def head(self) -> int:
        """Returns the stream's last sequence, 0 if it is empty. Raises LogUnavailable."""
        return (await self.state()).head

    async def state(self) -> LogState:
        """Returns the id and the head of the log. Raises LogUnavailable, or OtherLog if there is no stream."""
        with nats_errors("cannot ask NATS for the stream's end"):
            info = await self.nc.jetstream().stream_info(STREAM)
        return LogState(log_id(info), int(info.state.last_seq))

    async def partition_head(self, partition: int, turns_of: str | None = None) -> int:
        """Returns the last sequence of one partition, or of the turns of the tenant `turns_of` in it; 0 if there are
        none."""
        return await self._last_of(turns_filter(turns_of, partition) if turns_of else partition_filter(partition))

    async def heads(self, turns_of: str | None = None) -> dict[int, int]:
        """Returns the `partition_head` of each partition. Raises LogUnavailable."""
        heads = (self.partition_head(partition, turns_of) for partition in range(self.partitions))
        return dict(enumerate(await asyncio.gather(*heads)))

    async def thread_head(self, tenant: str, thread: str, type_: str | None = None) -> int:
        """Returns the last sequence of a thread (the value for `expected`), or of its events of one type; 0 if there
        are none."""
        return await self._last_of(thread_filter(tenant, thread, type_))

    async def thread_head_of(self, tenant: str, thread: str, types: Collection[str]) -> int:
        """Returns the last sequence of a thread's events of any of these types; 0 if there are none. Raises
        LogUnavailable."""
        return max(await asyncio.gather(*(self.thread_head(tenant, thread, type_) for type_ in types)), default=0)

    async def partition_of(self, tenant: str, thread: str, seq: int) -> int:
        """Returns a thread's partition, which the server chooses once. seq: the sequence of one of its events. If it is
        0, because there are none, returns 0."""
        if self.partitions == 1 or not seq:
            return 0
        if (place := (tenant, thread)) not in self._partitions:
            self._partitions[place] = parse_stored((await self.stored(seq, with_key=False)).subject).partition
        return self._partitions[place]

    def reader(self, partition: int, start_seq: int) -> OrderedReader:
        return self.reader_of([partition_filter(partition)], start_seq)

    def reader_of(self, filters: Sequence[str], start_seq: int) -> OrderedReader:
        return OrderedReader(self.nc, filters, start_seq, keyring=self.keyring)

    def read(self, filters: Sequence[str], start_seq: int = 1, through_seq: int | None = None) -> AsyncIterator[Stored]:
        """Yields every matching message up to through_seq; None means up to the end of the log. Raises GapInLog,
        KeyUnavailable."""
        return read_to(self.nc, filters, start_seq, through_seq, keyring=self.keyring)

    async def stored(self, seq: int, with_key: bool = True) -> Stored:
        """Returns the message at a sequence, or its replacement. with_key: True also fetches the key that opens it.
        Raises NotFound, GapInLog, LogUnavailable, KeyUnavailable."""
        with nats_errors(f"cannot ask NATS for sequence {seq}"):
            try:
                message = await self.nc.jetstream().get_msg(STREAM, seq)
                subject, body, stored_ns = message.subject or "", message.data or b"", _ns(message.time)
            except NotFoundError as error:
                _refuse_lost_stream(error)
                if (instead := (await replacements(self.nc)).at(seq)) is None:
                    raise NotFound(f"the log has no event at sequence {seq}") from None
                subject, body, stored_ns = instead.subject, instead.body, instead.stored_ns
        if with_key and self.keyring is not None:
            await self.keyring.prefetch(key_ids_in([body]))
        return Stored(seq, subject, body, stored_ns, pending=0, keyring=self.keyring)

    async def overwrite(self, seq: int) -> bool:
        """Deletes one message and overwrites its bytes on disk; returns False if it no longer exists.

        Raises LogUnavailable.
        """
        self.appender.assert_same_log()
        with nats_errors(f"NATS did not delete sequence {seq}"):
            return await overwrite(self.nc.jetstream(), STREAM, seq)

    async def end_readers(self) -> None:
        """Ends all open readers of the log, including those of other processes. Each reader raises GapInLog, is
        reopened after its last event, and then finds the replacements of events that are deleted from now on. Raises
        LogUnavailable."""
        names: list[str] = []
        with nats_errors("cannot end the readers of the log"):
            while page := await self._consumer_names(len(names)):
                names += page
            for name in names:
                if name.startswith(READER):
                    with contextlib.suppress(NotFoundError):  # it was closed meanwhile
                        await self.nc.jetstream().delete_consumer(STREAM, name)

    async def _consumer_names(self, offset: int) -> list[str]:
        """Returns a page of the names of the stream's consumers. In a cluster, a list of their states may be
        incomplete."""
        ask, subject = json.dumps({"offset": offset}).encode(), f"$JS.API.CONSUMER.NAMES.{STREAM}"
        reply = json.loads((await self.nc.request(subject, ask, timeout=ANSWER_S)).data)
        if "error" in reply:
            raise APIError.from_error(reply["error"])
        return list(reply["consumers"])

    async def waiting_since(self, partition: int, position: int) -> datetime | None:
        """Returns the time when the partition's first event after a position was stored; None if there is no such
        event."""
        js, subject = self.nc.jetstream(), partition_filter(partition)
        with nats_errors(f"cannot ask NATS which event follows sequence {position}"):
            try:
                return (await js.get_msg(STREAM, seq=position + 1, subject=subject, next=True)).time
            except NotFoundError as error:
                _refuse_lost_stream(error)
                return None

    async def read_thread(
        self,
        tenant: str,
        thread: str,
        start_seq: int = 1,
        through_seq: int | None = None,
        types: Sequence[str] = (),
    ) -> AsyncIterator[Recorded]:
        """Yields a thread's events in order, except undecodable ones, which are parked and in no read model. types:
        yields only these types. Raises KeyUnavailable at an event that cannot be unsealed now."""
        async for stored in self.read_stored(tenant, thread, start_seq, through_seq, types):
            with contextlib.suppress(InvalidEvent):
                if (decoded := recorded(stored)).event.thread == thread:
                    yield decoded

    async def read_stored(
        self,
        tenant: str,
        thread: str,
        start_seq: int = 1,
        through_seq: int | None = None,
        types: Sequence[str] = (),
    ) -> AsyncIterator[Stored]:
        """Yields events like read_thread but without decoding them, so that the caller can continue after an
        undecodable event. If the thread's user has a long id, events of another user's thread may be among them."""
        end = await self.head() if through_seq is None else through_seq
        filters = [filter_ for type_ in (types or (None,)) for filter_ in thread_filters(tenant, thread, type_)]
        async for stored in self.read(filters, start_seq, end):
            yield stored

    async def stored_ids(self, tenant: str, thread: str, start_seq: int = 1) -> dict[UUID, int]:
        """Returns the first sequence of each event id of a thread from start_seq on. Raises GapInLog."""
        return {key.id: seq for key, seq in (await all_stored(self.nc, [(tenant, thread)], start_seq)).items()}

    async def _last_of(self, subject: str) -> int:
        """Returns the last sequence with this subject, 0 if there is none. It reads only the sequence of the reply,
        because parsing the message's headers would double the cost."""
        ask = json.dumps({"last_by_subj": subject}).encode()
        with nats_errors(f"cannot ask NATS for the last of {subject}"):
            answer = await self.nc.request(f"$JS.API.STREAM.MSG.GET.{STREAM}", ask, timeout=ANSWER_S)
            reply = json.loads(answer.data)
            try:
                if "error" in reply:
                    raise APIError.from_error(reply["error"])
            except NotFoundError as error:
                _refuse_lost_stream(error)
                return 0
            return int(reply["message"]["seq"])


def _refuse_lost_stream(error: NotFoundError) -> None:
    """Raises the error again, which nats_errors turns into OtherLog, if the stream is missing and not only a
    message."""
    if error.err_code == NO_STREAM:
        raise error


def _ns(time: datetime | None) -> int:
    return int(time.timestamp() * 1_000_000) * 1_000 if time else 0


def _without_secret(url: str) -> str:
    return ",".join(part.rsplit("@", 1)[-1] for part in url.split(","))
