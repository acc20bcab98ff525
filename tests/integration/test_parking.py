"""Events that a projection cannot apply are parked with the later events of their thread only."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from conftest import Settled
from helpers.sample_events import event, turn
from helpers.servers import parked, rows, running_projector

from turnlog.events.codec import encode
from turnlog.events.contracts import Event, Recorded, ThreadDeleted, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.engine.changes import Change
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.replay import drop

CONTENTS = "SELECT thread_id, content FROM messages ORDER BY seq"
OUT_OF_RANGE = 2**31


async def publish(log: Log, subject: str, body: bytes) -> int:
    """Publishes a message like a foreign client."""
    return (await log.nc.jetstream().publish(subject, body)).seq


async def publish_raw(nats_url: str, subject: bytes, body: bytes) -> None:
    """Publishes raw bytes like a client without any checks."""
    url = urlsplit(nats_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    hello = {"verbose": False, "user": url.username or "", "pass": url.password or ""}
    writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
    writer.write(b"PUB " + subject + b" " + str(len(body)).encode() + b"\r\n" + body + b"\r\nPING\r\n")
    while await reader.readline() != b"PONG\r\n":
        assert not reader.at_eof()
    writer.close()
    await writer.wait_closed()


def changed(original: Event, old: str, new: str) -> bytes:
    body = encode(original).decode()
    assert old in body
    return body.replace(old, new).encode()


BAD = {
    "malformed JSON": ("turn_recorded", b'{"specversion": "1.0", '),
    "an empty body": ("turn_recorded", b""),
    "an unknown type": ("mood_changed", changed(turn(), "turnlog.turn_recorded", "turnlog.mood_changed")),
    "a version from the future": ("turn_recorded", changed(turn(), "turn_recorded:3", "turn_recorded:4")),
    "a version that is no number": ("turn_recorded", changed(turn(), "turn_recorded:3", "turn_recorded:³")),
    "another thread's event": ("turn_recorded", encode(turn(thread="other"))),
    "another tenant's event": ("turn_recorded", encode(turn(tenant="acme"))),
    "a NUL in a field name": ("turn_recorded", changed(turn(), '"role"', '"sur\\u0000prise":1,"role"')),
    "a NUL in the id": ("turn_recorded", changed(turn(), '"id":"', '"id":"\\u0000')),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_event_is_parked_with_its_thread_and_others_go_on(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled, kind: str
) -> None:
    type_, body = BAD[kind]
    await log.append(turn("before", thread="t"))
    await publish(log, f"turnlog.default.t.{type_}", body)
    await log.append_many([turn("behind", thread="t"), turn("free", thread="u"), turn("free", "user", tenant="acme")])
    await settled()
    assert await rows(db, CONTENTS) == [("t", "before"), ("u", "free"), ("t", "free")]
    assert await parked(db, "messages") == [(2, "poison", "parked"), (3, "behind", "parked")]
    assert running_projectors.last_error is None


@pytest.mark.parametrize("token", [b"a\xffb", b"a\0b", "线".encode()])
async def test_no_byte_in_a_subject_stops_the_others(
    log: Log,
    db: Connection,
    running_projectors: Runner,
    settled: Settled,
    nats_url: str,
    database_url: str,
    token: bytes,
) -> None:
    await publish_raw(nats_url, b"turnlog.default." + token + b".turn_recorded", encode(turn()))
    await log.append(turn("free"))
    await settled()
    assert await rows(db, CONTENTS) == [("t", "free")]
    assert await parked(db, "messages") == [(1, "poison", "parked")]
    assert (await drop(log, database_url, MESSAGES, 1)).parked == ()


async def test_nobody_writes_into_another_tenant(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    await publish(log, "turnlog.mine.t.turn_recorded", encode(turn("forged", tenant="yours")))
    await publish(log, "turnlog.mine.t.thread_deleted", encode(event(ThreadDeleted(), tenant="yours")))
    await log.append(turn("true", tenant="yours"))
    await settled()
    assert await rows(db, "SELECT tenant, content FROM messages") == [("yours", "true")]


async def test_an_unknown_type_waits_in_every_projection_since_each_might_need_it(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    await publish(log, "turnlog.default.t.mood_changed", b"{}")
    await settled()
    letters = await rows(db, "SELECT projection, event_type, error FROM dead_letters ORDER BY 1")
    assert [name for name, _, _ in letters] == sorted(BY_NAME)
    assert {type_ for _, type_, _ in letters} == {"mood_changed"}


async def test_an_event_on_another_types_subject_is_parked_by_projections_of_that_type(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    await publish(log, "turnlog.default.t.thread_opened", encode(turn("hidden")))
    await settled()
    assert await parked(db, "thread_activity") == [(1, "poison", "parked")]
    assert await rows(db, CONTENTS) == []


async def test_an_event_that_the_database_refuses_waits_in_that_projection_only(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many(
        [
            turn("before"),
            turn("too many tokens", tokens_in=OUT_OF_RANGE),
            turn("behind"),
            turn("free", thread="u"),
        ]
    )
    await settled()
    assert await rows(db, CONTENTS) == [("t", "before"), ("u", "free")]
    assert await parked(db, "messages") == [(2, "poison", "parked"), (3, "behind", "parked")]
    assert await parked(db, "thread_activity") == []
    assert await rows(db, "SELECT message_count FROM thread_activity ORDER BY thread_id") == [(3,), (1,)]
    ((error,),) = await rows(db, "SELECT error FROM dead_letters WHERE seq = 2")
    assert "NumericValueOutOfRange" in error


async def test_a_parked_thread_stays_parked_over_a_restart(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url):
        await log.append(turn("poison", tokens_in=OUT_OF_RANGE))
        await settled()
    async with running_projector(log, database_url):
        await log.append_many([turn("behind"), turn("free", thread="u")])
        await settled()
    assert await rows(db, CONTENTS) == [("u", "free")]
    assert [reason for _, reason, _ in await parked(db, "messages")] == ["poison", "behind"]


async def test_a_bug_in_a_projector_parks_the_event_and_nothing_else(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    def project(batch: Sequence[Recorded]) -> list[Change]:
        if any(isinstance(r.event.data, TurnRecorded) and r.event.data.content == "trip" for r in batch):
            raise KeyError("the bug")
        return MESSAGES.project(batch)

    async with running_projector(log, database_url, [replace(MESSAGES, project=project)]):
        await log.append_many([turn(text, thread=text) for text in ("one", "trip", "two")])
        await settled("messages")
    assert await rows(db, CONTENTS) == [("one", "one"), ("two", "two")]
    assert await rows(db, "SELECT seq, error FROM dead_letters") == [(2, "KeyError: 'the bug'")]
