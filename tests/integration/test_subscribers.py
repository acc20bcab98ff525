"""On a real nats-server, a tenant's subscriber reads and publishes only events of its tenant and cannot do anything
else."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from helpers.sample_events import turn
from helpers.servers import eventually
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from turnlog.agent.access.subscribers import (
    NewSubscriber,
    SubscriberExists,
    create_subscriber,
    list_subscribers,
    remove_subscriber,
)
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened
from turnlog.consumers.servers import change_subscriber, stop
from turnlog.consumers.servers.binaries import nats_binary
from turnlog.consumers.servers.errors import ServerStartFailed
from turnlog.consumers.subscribing import admitting
from turnlog.events.errors import NotFound
from turnlog.events.subjects import OPERATOR_TYPES, STREAM, publish_subject

pytestmark = pytest.mark.slow

API = "$JS.turnlog.API"


@asynccontextmanager
async def connected(runtime: Runtime, made: NewSubscriber) -> AsyncIterator[tuple[Client, list[str]]]:
    """Yields the subscriber's client and the list of the server's refusals."""
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error).casefold())

    about: dict[str, Any] = {"user": made.user, "password": made.password, "error_cb": note, "allow_reconnect": False}
    async with await nats.connect(runtime.nats_url.rpartition("@")[2], **about) as client:
        yield client, refused


async def answer_to(runtime: Runtime, made: NewSubscriber) -> bytes:
    """Returns the server's first response to the subscriber's credentials. A refused client would leave its socket
    open."""
    host, _, port = runtime.nats_url.rpartition("@")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readline()
    options = {"user": made.user, "pass": made.password, "verbose": False}
    writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


async def read_all(client: Client, made: NewSubscriber) -> list[str]:
    """Returns the threads of the events in the subscriber's durable."""
    durable = await client.jetstream(domain=made.domain).pull_subscribe_bind(made.durable, made.stream)
    threads = []
    for message in await durable.fetch((await durable.consumer_info()).num_pending, timeout=60):
        threads.append(json.loads(message.data)["thread"])
        await message.ack_sync()
    return threads


async def of_others(runtime: Runtime) -> dict[str, int]:
    """Returns the number of events on each subject of other tenants."""
    info = await runtime.log.nc.jetstream().stream_info(STREAM, subjects_filter=">")
    return {subject: count for subject, count in (info.state.subjects or {}).items() if ".acme." not in subject}


async def test_a_subscriber_reads_and_publishes_for_its_tenant_and_reaches_nothing_else(home: Path) -> None:
    async with opened(Settings(home=home, plaintext=True)) as runtime:
        admit = admitting(runtime.settings)
        for tenant in ("acme", "other"):
            await runtime.log.append(turn(tenant=tenant, thread=f"of-{tenant}"))
        mine = await create_subscriber(runtime, "acme", "analytics", admit)
        other = await create_subscriber(runtime, "other", "analytics", admit)
        with pytest.raises(SubscriberExists):
            await create_subscriber(runtime, "acme", "analytics", admit)
        async with connected(runtime, mine) as (client, refused):
            assert await answer_to(runtime, mine) == b"PONG\r\n"
            assert await read_all(client, mine) == ["of-acme"]
            subject = publish_subject("acme", "t", "turn_recorded")
            answer = json.loads((await client.request(subject, b"{}", timeout=60)).data)
            assert answer["stream"] == STREAM
            await everything_else_is_refused(client, refused, mine, other)
            before = await of_others(runtime)
            await no_answer_lands_in_the_log(client, mine, subject)
            async with connected(runtime, other) as (second, _):
                assert await read_all(second, other) == ["of-other"]  # it still exists with its own filter
            assert await of_others(runtime) == before
        assert [subscriber.position for subscriber in await list_subscribers(runtime, "other")] == [2]
        await remove_subscriber(runtime, "acme", "analytics", admit)
        assert await list_subscribers(runtime, "acme") == []
        with pytest.raises(NotFound):
            await remove_subscriber(runtime, "acme", "analytics", admit)
        assert b"Authorization Violation" in await answer_to(runtime, mine)


async def everything_else_is_refused(
    client: Client, refused: list[str], mine: NewSubscriber, other: NewSubscriber
) -> None:
    """Checks the refusal of requests about another tenant's durable, changes to its own durable, and requests about the
    stream, with and without the domain; and of other tenants' subjects, stored subjects, and any subscription."""
    change = {"stream_name": STREAM, "config": ConsumerConfig(durable_name=mine.durable, filter_subject=">").as_dict()}
    asked = [
        f"CONSUMER.INFO.{STREAM}.{other.durable}",
        f"CONSUMER.MSG.NEXT.{STREAM}.{other.durable}",
        f"CONSUMER.CREATE.{STREAM}.{mine.durable}",
        f"CONSUMER.DURABLE.CREATE.{STREAM}.{mine.durable}",
        f"CONSUMER.CREATE.{STREAM}.new",
        f"CONSUMER.DELETE.{STREAM}.{mine.durable}",
        *(f"CONSUMER.{what}.{STREAM}.{other.durable}" for what in ("CREATE", "DURABLE.CREATE", "DELETE", "PAUSE")),
        f"CONSUMER.NAMES.{STREAM}",
        f"STREAM.INFO.{STREAM}",
        f"STREAM.MSG.GET.{STREAM}",
        f"STREAM.PURGE.{STREAM}",
    ]
    subjects = [f"{api}.{operation}" for api in (API, "$JS.API") for operation in asked]
    subjects += ["turnlog.other.t.turn_recorded", "turnlog.log.0.acme.t.turn_recorded", "turnlog.keys.k"]
    subjects += [f"turnlog.acme.t.{type_}" for type_ in OPERATOR_TYPES]
    subjects += [f"$JS.ACK.{STREAM}.{other.durable}.1.1.1.1.0", "turnlog.acme.t"]
    for subject in subjects:
        refused.clear()
        await client.publish(subject, json.dumps(change).encode())
        await refusal(refused, f'violation for publish to "{subject}"')
    for subject in (">", "turnlog.>", f"{API}.>", "turnlog.progress.acme.>"):
        refused.clear()
        await client.subscribe(subject)
        await refusal(refused, f'violation for subscription to "{subject}"')


async def refusal(refused: list[str], text: str) -> None:
    async def came() -> bool:
        return any(text.casefold() in line for line in refused)

    await eventually(came, 10)


async def no_answer_lands_in_the_log(client: Client, mine: NewSubscriber, subject: str) -> None:
    """The server sends a reply to any subject that the request names, without a permission check, even to another
    tenant's. In turnlog's account such replies would be stored as events."""
    target = publish_subject("other", "of-other", "turn_recorded")
    for asked in (
        subject,
        f"{API}.CONSUMER.INFO.{STREAM}.{mine.durable}",
        f"{API}.CONSUMER.MSG.NEXT.{STREAM}.{mine.durable}",
        f"$JS.ACK.{STREAM}.{mine.durable}.1.1.1.1.0",
    ):
        await client.publish(asked, b"", reply=target)
        await client.publish(asked, b"", reply="turnlog.keys.k")
        # This request is served after the one above, so a reply to that one would be stored by now.
        if asked == subject:
            await client.request(subject, b"{}", timeout=5)


async def test_a_subscriber_that_prevents_the_start_of_nats_leaves_nothing(home: Path) -> None:
    async def with_a_bad_password(durable: str, password: str | None) -> None:
        await change_subscriber(home, durable, "\0")  # nats-server does not support this escape in its configuration

    async with opened(Settings(home=home, plaintext=True)) as runtime:
        await runtime.log.append(turn(tenant="acme"))
        with pytest.raises(ServerStartFailed):
            await create_subscriber(runtime, "acme", "analytics", with_a_bad_password)
        assert await list_subscribers(runtime, "acme") == []
        made = await create_subscriber(runtime, "acme", "analytics", admitting(runtime.settings))
        assert await answer_to(runtime, made) == b"PONG\r\n"


async def test_a_home_without_nats_accounts_keeps_its_events(home: Path) -> None:
    settings = Settings(home=home, plaintext=True)
    async with opened(settings) as runtime:
        await runtime.log.append(turn(thread="kept"))
    await stop(home)
    streams = home / "nats" / "store" / "jetstream"
    (streams / "TURNLOG").rename(streams / "$G")
    async with opened(settings) as runtime:
        assert await runtime.log.head() == 1


async def test_another_nats_server_takes_the_configuration_that_is_printed(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, nats_url="nats://elsewhere", database_url="postgresql://elsewhere")
    printed = await admitting(settings)("sub~acme~analytics", "secret")
    assert printed is not None
    conf = tmp_path / "nats.conf"
    conf.write_text(
        printed.replace("TURNLOG {", "TURNLOG {\n jetstream: enabled, users: [{ user: a, password: b }]", 1)
    )
    done = await asyncio.to_thread(
        subprocess.run, [nats_binary(), "-c", conf, "-t"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "sub~acme~analytics" in (await admitting(settings)("sub~acme~analytics", None) or "")
