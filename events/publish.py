"""Publishes one event or one atomic batch (NATS ADR-50) and turns the server's refusals into errors."""

import asyncio
import json
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from nats.aio.client import Client
from nats.js.errors import NotFoundError

from turnlog.events import tracing
from turnlog.events.codec import CONTENT_TYPE, encode
from turnlog.events.contracts import Event
from turnlog.events.errors import EventTooLarge, LogFull, LogUnavailable, TurnlogError, WrongExpectedVersion
from turnlog.events.sealing import Keyring
from turnlog.events.signing import Signer
from turnlog.events.subjects import check_conversation, publish_subject, thread_filter, thread_token

HEADER_ROOM = 1_024
SENT_AT_ONCE = 100
STALE_EXPECTATION = 10071
DUPLICATE = 10201  # the error for a duplicate in an atomic batch
# JetStream is recovering or electing a leader, or the batch's first part was lost with a connection.
PASSING = frozenset({10008, 10009, 10118, 10176})
_FULL = frozenset({10002, 10023, 10047, 10077})


@dataclass(frozen=True, slots=True)
class Appended:
    """The position of an event in the log. duplicate: True if the event was found on the log: stored before this
    append, or by a try whose reply was lost."""

    event_id: UUID
    seq: int
    duplicate: bool = False


class Key(NamedTuple):
    """Identifies an event by its thread and its id, because the same id may be used on another thread."""

    tenant: str
    thread_token: str
    id: UUID

    @classmethod
    def of(cls, event: Event) -> "Key":
        return cls(event.tenant, thread_token(event.thread), event.id)


class Outgoing(NamedTuple):
    """An encoded event to publish.

    expected: the last sequence that the thread must have, or None. expected_type: applies `expected` to the thread's
    events of this type only. suffix: added to the event's id to make the message id, if a message on another thread has
    the same id.
    """

    id: UUID
    tenant: str
    thread: str
    subject: str
    body: bytes
    expected: int | None
    suffix: str = ""
    traceparent: str | None = None
    expected_type: str | None = None

    @property
    def key(self) -> Key:
        return Key(self.tenant, thread_token(self.thread), self.id)

    def under_another_id(self) -> "Outgoing":
        """Returns a copy with a new, random message id."""
        return self._replace(suffix=f" {uuid.uuid4().hex}")

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Nats-Msg-Id": f"{self.id}{self.suffix}", "Content-Type": CONTENT_TYPE}
        if self.expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(self.expected)
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = thread_filter(
                self.tenant, self.thread, self.expected_type
            )
        if self.traceparent is not None:
            headers[tracing.HEADER] = self.traceparent  # reactors do not receive bodies
        return headers


class Refused(Exception):
    """The server answered with an error. code: JetStream's err_code."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code


def outgoing(
    event: Event,
    expected: int | None,
    max_payload: int,
    keyring: Keyring | None = None,
    signer: Signer | None = None,
) -> Outgoing:
    """Encodes and checks an event. Raises InvalidEvent, InvalidToken, EventTooLarge or KeyUnavailable before anything
    is sent."""
    if event.data.CONVERSES:
        check_conversation(event.thread)
    subject = publish_subject(event.tenant, event.thread, event.type)
    room = max_payload - HEADER_ROOM
    if event.traceparent is None and (traceparent := tracing.traceparent()) is not None:
        event = event.model_copy(update={"traceparent": traceparent})
    body = encode(event, keyring, room)
    if signer is not None:
        body = signer.sign(event.thread, body)
    if len(body) > room:
        raise EventTooLarge.by(len(body), room, event.id)
    return Outgoing(event.id, event.tenant, event.thread, subject, body, expected, traceparent=event.traceparent)


async def publish(nc: Client, batch: list[Outgoing], timeout_s: float) -> list[Appended]:
    """Stores the entire batch or nothing; returns one entry per event.

    Raises Refused, or NATS errors if the outcome is unknown.
    """
    *leading, last = batch
    commit = await _stage(nc, leading) if leading else {}
    reply = await nc.request(last.subject, last.body, timeout=timeout_s, headers={**last.headers, **commit})
    ack: dict[str, Any] = json.loads(reply.data)
    if "error" in ack:
        raise Refused(ack["error"].get("err_code", 0), ack["error"].get("description", "refused"))
    # only a single event is acknowledged as a duplicate; a batch with a duplicate is refused
    duplicate = bool(ack.get("duplicate"))
    if duplicate and not await _is_there(nc, last, ack):
        raise Refused(DUPLICATE, f"sequence {ack['seq']}, on another subject, has the message id")
    first = ack["seq"] - len(leading)
    return [Appended(out.id, first + at, duplicate) for at, out in enumerate(batch)]


async def _stage(nc: Client, leading: list[Outgoing]) -> dict[str, str]:
    """Sends all events of a batch but the last; returns the headers for the last event, which commits the batch."""
    batch_id = uuid.uuid4().hex
    for number, out in enumerate(leading, 1):
        headers = {**out.headers, "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
        await nc.publish(out.subject, out.body, headers=headers)
        if number % SENT_AT_ONCE == 0:
            await asyncio.sleep(0)  # let the client write, so that the server can start working
    return {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(len(leading) + 1), "Nats-Batch-Commit": "1"}


async def _is_there(nc: Client, out: Outgoing, ack: dict[str, Any]) -> bool:
    """Returns whether the acknowledged message is on the event's subject; also True if it was deleted since.

    JetStream compares message ids across all subjects, so its duplicate may be a message on another thread.
    """
    try:
        message = await nc.jetstream().get_msg(ack["stream"], ack["seq"])
    except NotFoundError:
        return True
    return str(message.subject).endswith(out.subject.removeprefix("turnlog"))


def explain(out: Outgoing, refusal: Refused) -> TurnlogError:
    """Returns the error for a refusal that the caller can act on."""
    if refusal.code == STALE_EXPECTATION:
        return WrongExpectedVersion(
            f"thread {out.thread!r} has changed since sequence {out.expected} ({refusal}); read it again and retry"
        )
    if refusal.code in _FULL:
        return LogFull(
            f"the stream is full, event {out.id} was not stored ({refusal}); raise TURNLOG_STREAM_MAX_BYTES "
            "or free disk space, then append again"
        )
    return LogUnavailable(f"the server refused event {out.id}: {refusal}")
