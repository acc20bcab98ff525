"""The log on three real nats-servers loses no acknowledged event when a node dies during appends."""

import asyncio
import gc
import itertools
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from helpers.key_rings import keks
from helpers.nats_cluster import Cluster, start_cluster
from helpers.sample_events import turn
from helpers.servers import eventually, files_with, processes_left_in
from nats.errors import Error as NatsError

from turnlog.agent.privacy.keys.key_stream import KeyStream, new_record
from turnlog.events.append import Appender
from turnlog.events.contracts import Event
from turnlog.events.errors import KeyUnavailable, LogUnavailable
from turnlog.events.log import Log
from turnlog.events.publish import Appended
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.rebuild.verify import verify_several

READ_MODELS: Sequence[Projection] = (MESSAGES, THREAD_ACTIVITY)
LANES = 6
# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    started = await start_cluster(tmp_path / "cluster")
    yield started
    await started.stop()
    gc.collect()
    assert processes_left_in(tmp_path) == []


@pytest.fixture
async def replicated(cluster: Cluster) -> AsyncIterator[Log]:
    log = await Log.connect(",".join(cluster.urls), StreamOptions(replicas=3))
    log.appender = Appender(log.nc, ack_s=1)
    yield log
    await log.close()


async def node_of(log: Log, leader: bool) -> int:
    """Returns the number of the node of the stream's leader, or of a follower."""
    about = (await log.nc.jetstream().stream_info(STREAM)).cluster
    assert about is not None and about.leader is not None and about.replicas
    name = about.leader if leader else about.replicas[0].name
    return int(str(name)[1:])


async def lane(log: Log, number: int, acknowledged: list[tuple[Event, Appended]], enough: asyncio.Event) -> None:
    """Produces events of one thread by single appends and atomic batches, and repeats each until it is acknowledged."""
    for step in itertools.count():
        if enough.is_set():
            return
        count = 1 if step % 3 else 5
        events = [turn(f"{number}/{step}/{i}", thread=f"lane-{number}") for i in range(count)]
        while True:
            try:
                places = [await log.append(events[0])] if count == 1 else await log.append_many(events)
            except LogUnavailable:
                continue
            acknowledged += zip(events, places, strict=True)
            break


@pytest.mark.nightly
async def test_the_leader_and_then_a_follower_die_while_events_are_appended_and_come_back(
    cluster: Cluster, replicated: Log, database_url: str, db: Connection
) -> None:
    acknowledged: list[tuple[Event, Appended]] = []
    async with projecting(replicated, database_url):
        async with appending(replicated, acknowledged):
            for leader in (True, False):
                await more(acknowledged)
                victim = await node_of(replicated, leader)
                await cluster.kill(victim)
                await more(acknowledged)
                await cluster.restart(victim)
                await in_step(replicated, victim)
        await wait_for(db, tuple(p.name for p in READ_MODELS), 0, await replicated.partition_head(0), timeout_s=180.0)
    await assert_all_there(replicated, db, acknowledged)
    results = await verify_several(replicated, database_url, READ_MODELS)
    assert [(result.clean, result.parked) for result in results] == [(True, 0)] * len(READ_MODELS)


@pytest.mark.nightly
async def test_appends_go_on_while_the_leader_that_the_client_is_connected_to_is_silent(
    cluster: Cluster, replicated: Log
) -> None:
    """Only pings show that the leader is lost, and they do so long before an append gives up."""
    leader = await node_of(replicated, leader=True)
    async with connected_to(cluster, leader) as log:
        log.appender = Appender(log.nc, timeout_s=60)
        with cluster.silent(leader):
            stored = await asyncio.gather(*(log.append(turn("hello", thread=f"t{number}")) for number in range(3)))
            assert sorted(ack.seq for ack in stored) == [1, 2, 3]
            assert not is_connected_to(log, cluster, leader)
        await in_step(replicated, leader)


@asynccontextmanager
async def connected_to(cluster: Cluster, node: int) -> AsyncIterator[Log]:
    """Yields a log whose client is connected to this node; clients choose nodes at random."""
    while not is_connected_to(
        log := await Log.connect(",".join(cluster.urls), StreamOptions(replicas=3)), cluster, node
    ):
        await log.close()
    yield log
    await log.close()


def is_connected_to(log: Log, cluster: Cluster, node: int) -> bool:
    return log.nc.connected_url is not None and log.nc.connected_url.port == cluster.nodes[node].wish.port


@asynccontextmanager
async def projecting(log: Log, database_url: str) -> AsyncIterator[None]:
    runner = Runner(log, database_url, READ_MODELS, 0)
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.stop()
        await task


@asynccontextmanager
async def appending(log: Log, acknowledged: list[tuple[Event, Appended]]) -> AsyncIterator[None]:
    """Runs LANES producers while the block runs; at its end they finish their current work."""
    enough = asyncio.Event()
    tasks = [asyncio.create_task(lane(log, number, acknowledged, enough)) for number in range(LANES)]
    try:
        yield
    finally:
        enough.set()
        await asyncio.gather(*tasks)


async def more(acknowledged: list[tuple[Event, Appended]]) -> None:
    """Waits until 60 more events are acknowledged, so that appending continues."""
    before = len(acknowledged)

    async def came() -> bool:
        return len(acknowledged) >= before + 60

    await eventually(came)


async def assert_all_there(log: Log, db: Connection, acknowledged: list[tuple[Event, Appended]]) -> None:
    """Asserts that each thread contains exactly the acknowledged events, in order and at the acknowledged sequences."""
    for number in range(LANES):
        thread = f"lane-{number}"
        told = [(event.id, appended.seq) for event, appended in acknowledged if event.thread == thread]
        stored = [(r.event.id, r.seq) async for r in log.read_thread("default", thread)]
        rows = await db.execute("SELECT event_id, seq FROM messages WHERE thread_id = %s ORDER BY seq", (thread,))
        assert stored == told == await rows.fetchall()


async def in_step(log: Log, node: int) -> None:
    """Waits until the node has caught up with the stream."""

    async def is_in_step() -> bool:
        try:
            about = (await log.nc.jetstream().stream_info(STREAM)).cluster
        except NatsError:
            return False
        peers = {str(p.name): p for p in (about.replicas or [] if about else [])}
        return (peer := peers.get(f"n{node}")) is not None and bool(peer.current) and not peer.offline

    await eventually(is_in_step)


async def test_a_destroyed_key_leaves_no_byte_on_any_node_and_not_in_their_raft_logs(
    cluster: Cluster, replicated: Log, tmp_path: Path
) -> None:
    stream = KeyStream(replicated.nc, keks())
    await stream.create(StreamOptions(replicas=3))
    records = [new_record(stream.keks, "default", user) for user in ("ann", "bob")]

    async def are_kept() -> bool:
        """Returns whether the stream stores the keys; a new stream has no leader at first."""
        try:
            await stream.put(records)
        except KeyUnavailable:
            return False
        return True

    await eventually(are_kept)
    ann, bob = (b64encode(record.wrapped or b"").decode() for record in records)

    def nodes_with(key: str) -> set[str]:
        return {path.relative_to(tmp_path / "cluster").parts[0] for path in files_with(tmp_path, [key])}

    async def are_written() -> bool:
        return nodes_with(ann) == nodes_with(bob) == {"n0", "n1", "n2"}

    async def is_only_bob_left() -> bool:
        return nodes_with(ann) == set() and nodes_with(bob) == {"n0", "n1", "n2"}

    await eventually(are_written)
    await stream.destroy(records[:1])
    await eventually(is_only_bob_left)
    left = {record.user: record.wrapped for record in await stream.of_keys([record.id for record in records])}
    assert left == {"ann": None, "bob": records[1].wrapped}
