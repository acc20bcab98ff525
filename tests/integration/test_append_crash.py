"""A nats-server is killed during appends; every event is stored once, acknowledged or not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.prepared_home import copy_database
from helpers.sample_events import turn
from helpers.servers import eventually, processes_left_in

from turnlog.consumers.servers import start, stop
from turnlog.consumers.servers.processes import alive, running, wait_until
from turnlog.events.append import Appender
from turnlog.events.errors import LogClosed, LogUnavailable
from turnlog.events.log import Log, connect_nats
from turnlog.events.stream import StreamOptions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory, prepared_home: Path) -> AsyncIterator[Path]:
    """Yields a home with separate servers that the tests can kill."""
    folder = copy_database(prepared_home, tmp_path_factory.mktemp("killed") / "home")
    yield folder
    await stop(folder)
    assert processes_left_in(folder) == []


async def kill_nats(home: Path) -> None:
    (server,) = running(home / "nats", "nats-server")
    server.kill()

    async def gone() -> bool:
        return not alive(server)

    assert await wait_until(gone, lambda: True, 60)


@pytest.mark.nightly
@pytest.mark.parametrize("in_batches", [False, True])
async def test_every_event_is_stored_once_though_the_server_was_killed_twice(home: Path, in_batches: bool) -> None:
    log = await Log.connect((await start(home)).nats_url, StreamOptions())
    log.appender = Appender(log.nc, timeout_s=60, ack_s=1)
    thread = f"killed-{in_batches}"
    events = [turn(str(i), thread=thread) for i in range(3_000)]

    async def write() -> list[int]:
        if in_batches:
            parts = [events[at : at + 300] for at in range(0, len(events), 300)]
            return [a.seq for part in parts for a in await log.append_many(part)]
        return [a.seq for a in await asyncio.gather(*(log.append(event) for event in events))]

    async def kill_once_it_flows(after: int) -> None:
        async def flows() -> bool:
            try:
                return await log.thread_head("default", thread) > after
            except LogUnavailable:  # the request came during a restart
                return False

        assert await wait_until(flows, lambda: True, 60)
        await kill_nats(home)
        await start(home)

    try:
        writing = asyncio.create_task(write())
        base = await log.head()
        await kill_once_it_flows(base)
        await kill_once_it_flows(base + 1_000)
        sequences = await writing
        stored = [r async for r in log.read_thread("default", thread)]
        assert sorted(r.event.id for r in stored) == sorted(event.id for event in events)
        assert {r.event.id: r.seq for r in stored} == dict(zip([e.id for e in events], sequences, strict=True))
    finally:
        await log.close()


async def test_an_append_while_the_server_is_down_reports_an_unknown_outcome(home: Path) -> None:
    log = await Log.connect((await start(home)).nats_url, StreamOptions())
    log.appender = Appender(log.nc, timeout_s=0.5, ack_s=0.2)
    event = turn(thread="open")
    try:
        await kill_nats(home)
        with pytest.raises(LogUnavailable, match="may or may not be stored: append them again with the same ids"):
            await log.append(event)
        await start(home)
        log.appender = Appender(log.nc)
        await log.append(event)
        assert [r.event.id async for r in log.read_thread("default", "open")] == [event.id]
    finally:
        await log.close()


async def test_an_append_running_when_the_log_is_closed_reports_an_unknown_outcome(home: Path) -> None:
    log = await Log.connect((await start(home)).nats_url, StreamOptions())
    log.appender = Appender(log.nc, ack_s=0.2)
    await kill_nats(home)
    appending = asyncio.create_task(log.append(turn()))
    await asyncio.sleep(0)  # until the append has been sent
    await log.close()
    with pytest.raises(LogClosed, match=r"closed before NATS acknowledged.*may or may not be stored"):
        await appending


async def test_only_a_permanently_ended_connection_counts_as_closed(home: Path) -> None:
    log = await Log.connect((await start(home)).nats_url, StreamOptions())
    try:
        await kill_nats(home)
        await start(home)
        await log.append(turn(thread="reconnected"))
        assert not log.closed.is_set()
        assert log.nc._transport is not None
        log.nc._transport.write(b"NO SUCH COMMAND\r\n")
        async with asyncio.timeout(180):
            await log.closed.wait()
    finally:
        await log.close()


async def test_a_wrong_token_is_reported_and_not_shown(home: Path) -> None:
    wrong = "nats://wr0ng@" + (await start(home)).nats_url.rsplit("@", 1)[-1]
    with pytest.raises(LogUnavailable, match=r"cannot connect to NATS.*Authorization") as caught:
        await connect_nats(wrong, "test", timeout_s=2)
    assert "wr0ng" not in str(caught.value)


async def test_a_cancelled_connect_leaves_no_connection(nats_url: str) -> None:
    before = asyncio.all_tasks()
    for steps in range(0, 400, 4):
        connecting = asyncio.create_task(connect_nats(nats_url, "test"))
        for _ in range(steps):
            await asyncio.sleep(0)
        connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await connecting).close()

    async def all_ended() -> bool:
        return asyncio.all_tasks() <= before

    await eventually(all_ended)
