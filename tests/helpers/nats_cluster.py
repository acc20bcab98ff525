"""Runs a JetStream cluster of real nats-servers on loopback, for tests in which a node dies."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nats

from turnlog.consumers.servers.errors import ServerStartFailed
from turnlog.consumers.servers.nats_config import NatsAddress
from turnlog.consumers.servers.nats_server import NAME, NatsServer, free_port, new_token
from turnlog.consumers.servers.processes import end, running, wait_until
from turnlog.events.client import RobustClient

READY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes of a cluster; node `i` keeps its port and data over `kill` and `restart`."""

    nodes: tuple[NatsServer, ...]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(node.wish.url for node in self.nodes)

    async def kill(self, i: int) -> None:
        """Kills node `i` with SIGKILL and waits until its process has ended."""
        folder = self.nodes[i].folder
        await end(running(folder, NAME), [(signal.SIGKILL, 10.0)], lambda: running(folder, NAME))

    @contextlib.contextmanager
    def silent(self, i: int) -> Iterator[None]:
        """Freezes node `i` while the block runs; its connections stay open, as behind a broken network."""
        processes = running(self.nodes[i].folder, NAME)
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    async def restart(self, i: int) -> None:
        """Starts node `i` again if it is not running; returns when it accepts clients."""
        await self.nodes[i].start()

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))


async def start_cluster(base: Path, nodes: int = 3) -> Cluster:
    """Starts `nodes` servers with their data in `base`/n0, n1, ... and waits until a stream with as many replicas can
    be created. Raises ServerStartFailed."""
    cluster = Cluster(_configure(base.resolve(), nodes))
    base.mkdir(parents=True, exist_ok=True)
    try:
        await asyncio.gather(*(node.start() for node in cluster.nodes))
        if not await wait_until(lambda: _takes_replicas(cluster), lambda: True, READY_TIMEOUT_S):
            raise ServerStartFailed(f"the {nodes} nats-servers in {base} did not become a cluster")
    except BaseException:
        await cluster.stop()
        raise
    return cluster


def _configure(base: Path, count: int) -> tuple[NatsServer, ...]:
    ports = _distinct_ports(2 * count)
    token, routes = new_token(), tuple(ports[:count])
    return tuple(
        NatsServer(
            name=f"n{i}",
            folder=base / f"n{i}",
            wish=NatsAddress(ports[count + i], token),
            identity=None,
            timeout=READY_TIMEOUT_S,
            more=_membership(routes[i], routes),
        )
        for i in range(count)
    )


def _membership(own: int, routes: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the configuration lines for a node of the cluster: its own route port and those of all nodes."""
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    return ("cluster {", "  name: turnlog", f'  listen: "127.0.0.1:{own}"', f"  routes: [{urls}]", "}")


def _distinct_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)


async def _takes_replicas(cluster: Cluster) -> bool:
    """Returns whether a meta leader knows all nodes, so that it can place a stream on all of them."""
    client = RobustClient()
    try:
        await client.connect(list(cluster.urls), allow_reconnect=False)
        async with client:
            jetstream = client.jetstream(timeout=2)
            await jetstream.add_stream(name="READY", subjects=["ready"], num_replicas=len(cluster.nodes))
            await jetstream.delete_stream("READY")
    except nats.errors.Error:
        return False
    return True
