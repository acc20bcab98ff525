"""The log on three real nats-servers: a node dies while events are appended, nothing acknowledged is lost (O2)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from places import eventually, left_behind
from samples import turn

from turnlog.agent.embedded.nats_cluster import Cluster, start_cluster
from turnlog.events.contracts import Event
from turnlog.events.errors import LogUnavailable
from turnlog.events.log import Log
from turnlog.events.publish import Appended
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine import Runner
from turnlog.projectors.lag import wait_for
from turnlog.projectors.messages import MESSAGES
from turnlog.projectors.projection import Projection
from turnlog.projectors.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.verify import verify
from turnlog.projectors.writer import Connection

READ_MODELS: Sequence[Projection] = (MESSAGES, THREAD_ACTIVITY)
LANES, ROUNDS = 6, 40


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    found = await start_cluster(tmp_path / "cluster")
    yield found
    await found.stop()
    assert left_behind(tmp_path) == []


@pytest.fixture
async def replicated(cluster: Cluster) -> AsyncIterator[Log]:
    log = await Log.connect(",".join(cluster.urls), StreamOptions(replicas=3))
    yield log
    await log.close()


async def node_of(log: Log, leader: bool) -> int:
    """The number of the stream's leader, or of one of its followers."""
    about = (await log.nc.jetstream().stream_info(STREAM)).cluster
    assert about is not None and about.leader is not None and about.replicas
    name = about.leader if leader else about.replicas[0].name
    return int(str(name)[1:])


async def lane(log: Log, number: int, acknowledged: list[tuple[Event, Appended]]) -> None:
    """A producer of one thread: single appends and atomic batches, each again until it is acknowledged."""
    for step in range(ROUNDS):
        count = 1 if step % 3 else 5
        events = [turn(f"{number}/{step}/{i}", thread=f"lane-{number}") for i in range(count)]
        while True:
            try:
                places = [await log.append(events[0])] if count == 1 else await log.append_many(events)
            except LogUnavailable:
                continue
            acknowledged += zip(events, places, strict=True)
            break


@pytest.mark.parametrize("leader", [True, False], ids=["the leader", "a follower"])
async def test_a_node_dies_and_comes_back_while_events_are_appended(
    cluster: Cluster, replicated: Log, database_url: str, db: Connection, leader: bool
) -> None:
    acknowledged: list[tuple[Event, Appended]] = []
    runner = Runner(replicated, database_url, READ_MODELS, 0)
    projecting = asyncio.create_task(runner.run())
    appending = asyncio.gather(*(lane(replicated, number, acknowledged) for number in range(LANES)))

    async def flows() -> bool:
        return len(acknowledged) > 60

    await eventually(flows)
    victim = await node_of(replicated, leader)
    await cluster.kill(victim)
    before = len(acknowledged)

    async def goes_on() -> bool:
        return len(acknowledged) > before + 60

    await eventually(goes_on)
    await cluster.restart(victim)
    await appending
    await wait_for(db, tuple(p.name for p in READ_MODELS), 0, await replicated.partition_head(0))
    runner.stop()
    await projecting
    await assert_all_there(replicated, db, acknowledged)
    for projection in READ_MODELS:
        found = await verify(replicated, database_url, projection)
        assert found.clean and found.parked == 0
    await eventually(lambda: is_in_step(replicated, victim), timeout_s=30)


async def assert_all_there(log: Log, db: Connection, acknowledged: list[tuple[Event, Appended]]) -> None:
    """Each thread has what was acknowledged, once, in order and at the sequences that were told; nothing else."""
    assert len(acknowledged) == LANES * sum(1 if step % 3 else 5 for step in range(ROUNDS))
    for number in range(LANES):
        thread = f"lane-{number}"
        told = [(event.id, place.seq) for event, place in acknowledged if event.thread == thread]
        stored = [(r.event.id, r.seq) async for r in log.read_thread("default", thread)]
        rows = await db.execute("SELECT event_id, seq FROM messages WHERE thread_id = %s ORDER BY seq", (thread,))
        assert stored == told == await rows.fetchall()


async def is_in_step(log: Log, node: int) -> bool:
    """Whether the node has all of the stream again."""
    about = (await log.nc.jetstream().stream_info(STREAM)).cluster
    if about is None or about.leader is None:
        return False
    peers = {str(p.name): p for p in about.replicas or []}
    return about.leader == f"n{node}" or bool((peer := peers.get(f"n{node}")) and peer.current and not peer.offline)
