"""Reads the log in order and checks it for gaps. Positions are stored in Postgres, not in NATS consumers.

The reader is an ephemeral pull consumer without acks. Consumer sequences must be consecutive; a gap, a lost consumer
or a missing reply raises GapInLog, and the caller reopens the reader at its own position.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Self
from uuid import UUID
from weakref import WeakKeyDictionary

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError

from turnlog.events.errors import GapInLog, TurnlogError, cause
from turnlog.events.redactions import READER, Replacement, Replacements, replacement
from turnlog.events.sealing import Keyring, key_ids_in
from turnlog.events.signing import Signer
from turnlog.events.stored import Stored
from turnlog.events.subjects import STREAM, redactions_filter, type_filter

PULL = 2_000
PULL_BYTES = 32 * 1024 * 1024
# The maximum size of one batch, so that small messages do not wait for large ones and memory is limited.
BATCH_BYTES = 4 * 1024 * 1024
PULL_EXPIRES_S = 5.0
MAX_SILENT_WAITS = 30
# Timeout in seconds for creating a reader. A lost leader does not reply, but the next try may reach the new leader.
OPEN_S = 1.0
TRIES, REOPEN_WAIT_S = 8, 0.2
UNHEARD_TRIES, UNHEARD_WAIT_S = 10, 0.1
NO_MESSAGE = 10037  # JetStream's err_code
_ORDINARY_ENDS = ("Batch Completed", "Message Size Exceeds MaxBytes")


class OrderedReader:
    """Reads matching messages in order from a start sequence, in batches of the messages that have arrived."""

    def __init__(
        self,
        nc: Client,
        filters: Sequence[str],
        start_seq: int,
        headers_only: bool = False,
        since: datetime | None = None,
        keyring: Keyring | None = None,
        stream: str = STREAM,
        as_stored: bool = False,
    ) -> None:
        """Creates a reader that starts at `start_seq`. since: starts at this stored time instead. headers_only: True
        leaves bodies empty and sets the message ids. as_stored: True leaves out the replacements of deleted events.

        The attribute `taken` is the size of the last batch.
        """
        self._replaced: list[Replacement] = []  # the replacements that are still to be read
        self._as_stored = as_stored or stream != STREAM
        self._stream = stream
        self._nc, self._filters, self._start = nc, list(filters), max(1, start_seq)
        self._headers_only, self._since, self._keyring = headers_only, since, keyring
        self._js: JetStreamContext = nc.jetstream(timeout=OPEN_S)
        self._buffer: list[Stored] = []
        self._buffered_bytes = 0
        self._arrived = asyncio.Event()
        self._outstanding = 0
        self._delivered = 0
        self._failure: str | None = None
        self._connection = 0
        self._unheard = 0
        self._sub: Subscription | None = None
        self._name = ""
        self.pending_at_start = 0
        self.taken = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Creates the consumer. Raises GapInLog if this fails, or KeyUnavailable if the secret that checks replacements
        cannot be fetched; try again.

        Replacements are read after the consumer exists, so that a redaction is either found here or ends this consumer.
        """
        self._name = READER + uuid.uuid4().hex
        self._connection = self._nc.stats["reconnects"]
        try:
            self._inbox = self._nc.new_inbox()
            self._sub = await self._nc.subscribe(
                self._inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            info = await self._js.add_consumer(self._stream, self._consumer_config())
            if not self._as_stored:
                known = await replacements(self._nc)
                self._replaced = known.fitting(self._filters, self._start, self._since, info.created)
            self.pending_at_start = (info.num_pending or 0) + len(self._replaced)
            if not info.num_pending:
                self._put_replaced(None, 0)
        except TurnlogError:
            await self.close()
            raise
        except (NatsError, TimeoutError, OSError) as error:
            await self.close(is_made=False)
            raise GapInLog(f"cannot open a reader on {self._stream}: {cause(error)}") from error

    async def close(self, is_made: bool = True) -> None:
        """Deletes the consumer. If this fails, the server deletes the consumer after its inactivity threshold.

        is_made: False if the consumer may not exist, so that its deletion does not wait for the server again.
        """
        sub, self._sub = self._sub, None
        if sub is None or self._nc.is_closed:
            return
        try:
            await sub.unsubscribe()
            if is_made and self._nc.is_connected:
                await self._js.delete_consumer(self._stream, self._name)
        except (NatsError, TimeoutError, OSError):
            return

    async def batch(self, limit: int = PULL, wait_s: float = 1.0) -> list[Stored]:
        """Returns up to `limit` messages: at once if some have arrived, else within `wait_s` seconds; [] if none came.

        The messages have at most BATCH_BYTES in total, unless a single message is larger. Their keys are fetched in one
        query. Raises GapInLog; the caller must then open a new reader.
        """
        await self._request()
        if not self._buffer:
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                self._doubt()
        if self._failure is not None and not self._buffer:
            raise GapInLog(self._failure)
        sizes = accumulate(len(stored.body) for stored in self._buffer[:limit])
        most = min(limit, len(self._buffer))
        self.taken = next((max(1, at) for at, size in enumerate(sizes) if size > BATCH_BYTES), most)
        taken, self._buffer = self._buffer[: self.taken], self._buffer[self.taken :]
        self._buffered_bytes -= sum(len(stored.body) for stored in taken)
        if not self._buffer:
            self._arrived.clear()
        await self._request()
        if self._keyring is not None:
            await self._keyring.prefetch(key_ids_in(stored.body for stored in taken))
        return taken

    def wake(self) -> None:
        """Ends the wait of a running `batch`, which then returns the messages that have arrived, possibly none."""
        self._arrived.set()

    @property
    def ahead(self) -> int:
        """Returns the known number of messages that follow the last batch."""
        return len(self._buffer) + (self._buffer[-1].pending if self._buffer else 0)

    async def until_caught_up(self) -> AsyncIterator[Stored]:
        """Yields messages until the end of the log is reached. Raises GapInLog."""
        pending, silent = self.pending_at_start, 0
        while pending:
            batch = await self.batch()
            for stored in batch:
                yield stored
                pending = stored.pending
            silent = 0 if batch else silent + 1
            if silent:
                pending = await self._still_due(pending)
            if silent > MAX_SILENT_WAITS:
                raise GapInLog(f"{pending} messages were due, but none arrived for {MAX_SILENT_WAITS} s")

    async def _still_due(self, pending: int) -> int:
        """Returns how many messages are still expected, because an erasure may have deleted some meanwhile."""
        try:
            info = await self._js.consumer_info(self._stream, self._name)
        except (NatsError, TimeoutError, OSError):
            return pending
        if info.delivered is None or info.delivered.consumer_seq != self._delivered:
            return pending
        if not info.num_pending:
            self._put_replaced(None, 0)
        return (info.num_pending or 0) + len(self._buffer)

    def _consumer_config(self) -> ConsumerConfig:
        single = len(self._filters) == 1
        return ConsumerConfig(
            name=self._name,
            deliver_policy=DeliverPolicy.BY_START_TIME if self._since else DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=None if self._since else self._start,
            opt_start_time=self._since,
            headers_only=self._headers_only or None,
            ack_policy=AckPolicy.NONE,
            filter_subject=self._filters[0] if single else None,
            filter_subjects=None if single else self._filters,
            inactive_threshold=30.0,
            mem_storage=True,
            num_replicas=1,
        )

    async def _request(self) -> None:
        """Keeps one pull request open while the buffer is short, so that the server works in parallel."""
        if self._outstanding or self._failure or len(self._buffer) >= PULL or self._buffered_bytes >= PULL_BYTES:
            return
        self._outstanding = PULL
        self._asked_at = asyncio.get_running_loop().time()
        room = max(PULL_BYTES, 2 * self._nc.max_payload)  # with less room the largest message would never arrive
        ask = {"batch": PULL, "max_bytes": room, "expires": int(PULL_EXPIRES_S * 1e9)}
        try:
            await self._nc.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}", json.dumps(ask).encode(), self._inbox
            )
        except (NatsError, OSError) as error:
            self._failure = f"cannot ask for messages: {cause(error)}"

    def _doubt(self) -> None:
        """Marks the reader as failed if the connection was lost or a pull request got no reply at all."""
        silent = asyncio.get_running_loop().time() - self._asked_at
        if self._nc.stats["reconnects"] != self._connection:
            self._failure = "the connection to the server was lost"
        elif self._outstanding and silent > PULL_EXPIRES_S + 3.0:
            self._failure = "the server did not answer a pull"
        if self._failure is not None:
            self._arrived.set()

    async def _on_message(self, msg: Msg) -> None:
        if msg.reply:
            self._take(msg)
        else:
            self._status(msg)
        self._arrived.set()  # so that the reader takes the message or sends another pull request

    def _take(self, msg: Msg) -> None:
        sseq, cseq, stored_ns, pending = _metadata(msg.reply)
        if self._failure:
            return
        self._delivered += 1
        if cseq != self._delivered:
            self._failure = f"consumer sequence {cseq} came, but {self._delivered} was due"
            return
        self._outstanding, self._unheard = max(0, self._outstanding - 1), 0
        if self._replaced:
            self._put_replaced(sseq, pending + 1)
        message_id, due = _message_id(msg) if self._headers_only else None, pending + len(self._replaced)
        self._put(Stored(sseq, msg.subject, msg.data, stored_ns, due, message_id, self._keyring))
        if not pending:
            self._put_replaced(None, 0)

    def _put(self, stored: Stored) -> None:
        self._buffer.append(stored)
        self._buffered_bytes += len(stored.body)

    def _put_replaced(self, before: int | None, pending: int) -> None:
        """Adds the replacements of events before a sequence; None adds all. If the event at the sequence arrived, it
        was not deleted and its replacement is dropped. pending: how many messages follow."""
        while self._replaced and (before is None or self._replaced[0].seq <= before):
            event, due = self._replaced.pop(0), pending + len(self._replaced)
            if event.seq != before:
                self._put(
                    Stored(event.seq, event.subject, event.body, event.stored_ns, due, event.event_id, self._keyring)
                )

    def _status(self, msg: Msg) -> None:
        """Handles the end of a pull request. Nats-Pending-Messages tells how many messages will not come."""
        headers = msg.headers or {}
        status, description = headers.get("Status", ""), headers.get("Description", "")
        if status in ("404", "408") or description in _ORDINARY_ENDS:
            left = int(headers.get("Nats-Pending-Messages", self._outstanding))
            self._outstanding = max(0, self._outstanding - left)
        elif status == "503" and self._unheard < UNHEARD_TRIES:
            self._unheard += 1
            asyncio.get_running_loop().call_later(UNHEARD_WAIT_S, self._ask_again)
        elif status != "100":
            self._failure = f"the server ended a pull with {status} {description}"

    def _ask_again(self) -> None:
        """Repeats a pull request, because in a cluster a new consumer exists before every server can route to it."""
        self._outstanding = 0
        self._arrived.set()


def _metadata(reply: str) -> tuple[int, int, int, int]:
    """Returns (stream sequence, consumer sequence, stored at in ns, pending) from an ack subject."""
    parts = reply.split(".")
    at = 5 if len(parts) == 9 else 7
    return int(parts[at]), int(parts[at + 1]), int(parts[at + 2]), int(parts[at + 3])


def _message_id(msg: Msg) -> UUID | None:
    try:
        return UUID((msg.headers or {}).get("Nats-Msg-Id", "")[:36])
    except ValueError:
        return None


async def read_to(
    nc: Client,
    filters: Sequence[str],
    start_seq: int,
    through_seq: int | None = None,
    headers_only: bool = False,
    since: datetime | None = None,
    keyring: Keyring | None = None,
    stream: str = STREAM,
    as_stored: bool = False,
) -> AsyncIterator[Stored]:
    """Yields every matching message from start_seq up to through_seq (None: up to the end of the log). as_stored: True
    leaves out the replacements of deleted events.

    If the reader is lost, for instance in a failover, it is reopened after the last message. Raises GapInLog after
    TRIES consecutive attempts without a message, and KeyUnavailable as OrderedReader.open does.
    """
    position, failures = start_seq, 0
    while through_seq is None or position <= through_seq:
        from_time = None if position > start_seq else since
        reader = OrderedReader(nc, filters, position, headers_only, from_time, keyring, stream, as_stored)
        try:
            async with reader:
                async for stored in reader.until_caught_up():
                    if through_seq is not None and stored.seq > through_seq:
                        return
                    yield stored
                    position, failures = stored.seq + 1, 0
                return
        except GapInLog:
            failures += 1
            if failures == TRIES:
                raise
            await asyncio.sleep(REOPEN_WAIT_S * failures)


_REPLACEMENTS: "WeakKeyDictionary[Client, Replacements]" = WeakKeyDictionary()


def check_replacements(nc: Client, signer: Signer | None) -> None:
    """Makes readers of this connection accept only replacements with a valid signature; None checks nothing."""
    _REPLACEMENTS[nc] = Replacements(signer)


async def replacements(nc: Client) -> Replacements:
    """Returns the replacements of deleted events, which are read again after a redaction. Raises KeyUnavailable, the
    errors of `read_to` and errors of NATS."""
    known = _REPLACEMENTS.setdefault(nc, Replacements())
    ask = json.dumps({"last_by_subj": redactions_filter()}).encode()
    reply = json.loads((await nc.request(f"$JS.API.STREAM.MSG.GET.{STREAM}", ask, timeout=OPEN_S)).data)
    if "error" in reply and reply["error"].get("err_code") != NO_MESSAGE:
        raise APIError.from_error(reply["error"])
    through = int(reply["message"]["seq"]) if "message" in reply else 0
    if through > known.through:
        events = read_to(nc, [type_filter("event_redacted")], 1, as_stored=True)
        checked = [replacement(event.seq, event.subject, event.body, known.signer) async for event in events]
        known.know(through, [redacted for redacted in checked if redacted is not None])
    return known
