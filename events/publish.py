"""One publish, or one atomic batch (ADR-50), and what the server's refusals mean."""

import asyncio
import json
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from nats.aio.client import Client

from turnlog.events.codec import CONTENT_TYPE, encode
from turnlog.events.contracts import Event
from turnlog.events.errors import EventTooLarge, LogFull, LogUnavailable, TurnlogError, WrongExpectedVersion
from turnlog.events.sealing import Keyring
from turnlog.events.subjects import check_conversation, publish_subject, thread_filter

HEADER_ROOM = 1_024
SENT_AT_ONCE = 100
STALE_EXPECTATION = 10071
DUPLICATE_IN_BATCH = 10201
# JetStream is recovering or electing a leader, or the batch's first part was lost with a connection.
PASSING = frozenset({10008, 10009, 10118, 10176})
_FULL = frozenset({10002, 10023, 10047, 10077})


@dataclass(frozen=True, slots=True)
class Appended:
    """The place of an event in the log. duplicate: it was stored before this append."""

    event_id: UUID
    seq: int
    duplicate: bool = False


class Outgoing(NamedTuple):
    """An encoded event on its way. expected: the last sequence its thread must have, or None."""

    id: UUID
    tenant: str
    thread: str
    subject: str
    body: bytes
    expected: int | None

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Nats-Msg-Id": str(self.id), "Content-Type": CONTENT_TYPE}
        if self.expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(self.expected)
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = thread_filter(self.tenant, self.thread)
        return headers


class Refused(Exception):
    """The server answered with an error. code: JetStream's err_code."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code


def outgoing(event: Event, expected: int | None, max_payload: int, keyring: Keyring | None = None) -> Outgoing:
    """Raises InvalidEvent, InvalidToken, EventTooLarge or KeyUnavailable before anything is sent."""
    if event.data.CONVERSES:
        check_conversation(event.thread)
    subject = publish_subject(event.tenant, event.thread, event.type)
    room = max_payload - HEADER_ROOM
    body = encode(event, keyring, room)
    if len(body) > room:
        raise EventTooLarge.by(len(body), room, event.id)
    return Outgoing(event.id, event.tenant, event.thread, subject, body, expected)


async def publish(nc: Client, batch: list[Outgoing], timeout_s: float) -> dict[UUID, Appended]:
    """Stores the whole batch or nothing. Raises Refused, or NATS errors when the outcome is unknown."""
    if len(batch) == 1:
        ack = await _ask(nc, batch[0], batch[0].headers, timeout_s)
        return {batch[0].id: Appended(batch[0].id, ack["seq"], bool(ack.get("duplicate")))}
    batch_id = uuid.uuid4().hex
    for number, out in enumerate(batch[:-1], 1):
        headers = {**out.headers, "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
        await nc.publish(out.subject, out.body, headers=headers)
        if number % SENT_AT_ONCE == 0:
            await asyncio.sleep(0)  # lets the client write, so that the server starts working meanwhile
    commit = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(len(batch)), "Nats-Batch-Commit": "1"}
    ack = await _ask(nc, batch[-1], {**batch[-1].headers, **commit}, timeout_s)
    first = ack["seq"] - len(batch) + 1
    return {out.id: Appended(out.id, first + at) for at, out in enumerate(batch)}


async def _ask(nc: Client, out: Outgoing, headers: dict[str, str], timeout_s: float) -> dict[str, Any]:
    reply = await nc.request(out.subject, out.body, timeout=timeout_s, headers=headers)
    ack: dict[str, Any] = json.loads(reply.data)
    if "error" in ack:
        raise Refused(ack["error"].get("err_code", 0), ack["error"].get("description", "refused"))
    return ack


def explain(out: Outgoing, refusal: Refused) -> TurnlogError:
    """Returns the error for a refusal that the caller can act on."""
    if refusal.code == STALE_EXPECTATION:
        return WrongExpectedVersion(
            f"thread {out.thread!r} moved on since sequence {out.expected} ({refusal}); read it again and retry"
        )
    if refusal.code in _FULL:
        return LogFull(
            f"the stream is full, event {out.id} was not stored ({refusal}); raise TURNLOG_STREAM_MAX_BYTES "
            "or free disk space, then append again"
        )
    return LogUnavailable(f"the server refused event {out.id}: {refusal}")
