"""Three real nats-servers form a JetStream cluster; acknowledged messages survive the death of a node."""

from pathlib import Path

import nats
import psutil
import pytest
from helpers.nats_cluster import start_cluster

from turnlog.consumers.servers.processes import running, wait_until
from turnlog.events.client import RobustClient


@pytest.mark.nightly
async def test_a_replicated_stream_outlives_the_kill_of_a_node(tmp_path: Path) -> None:
    cluster = await start_cluster(tmp_path / "cluster")
    try:
        client = RobustClient()
        await client.connect(list(cluster.urls), error_cb=ignore)
        async with client:
            jetstream = client.jetstream(timeout=10)
            stream = await jetstream.add_stream(name="NOTES", subjects=["notes"], num_replicas=3)
            await publish_until_acknowledged(jetstream, b"before")
            leader = stream.cluster.leader if stream.cluster else None
            assert leader in {"n0", "n1", "n2"}
            await cluster.kill(victim := int(leader[1:]))
            await publish_until_acknowledged(jetstream, b"while a node is down")
            await cluster.restart(victim)
            assert len(running(cluster.nodes[victim].folder, "nats-server")) == 1
            info = await jetstream.stream_info("NOTES")
            assert info.state.messages == 2
    finally:
        await cluster.stop()
    assert not [p for p in psutil.process_iter(["cwd"]) if str(tmp_path) in (p.info["cwd"] or "")]


async def publish_until_acknowledged(jetstream: nats.js.JetStreamContext, text: bytes) -> None:
    """Publishes until acknowledged, because a leader must be elected first. The id makes the retries one message."""

    async def acknowledged() -> bool:
        try:
            await jetstream.publish("notes", text, timeout=2, headers={"Nats-Msg-Id": text.decode()})
        except nats.errors.Error:
            return False
        return True

    assert await wait_until(acknowledged, lambda: True, timeout=60)


async def ignore(_: Exception) -> None:
    """Ignores the error of the lost connection, which the test causes on purpose."""
