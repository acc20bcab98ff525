"""Writes a nats-server's configuration and reads the address back from the file.

The file is the only record of port and token: it says what a running server was started with.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """The address of a nats-server on this machine and the token for its clients."""

    port: int
    token: str

    @property
    def url(self) -> str:
        return f"nats://{self.token}@127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A node's place in a cluster: its own route port and those of all nodes."""

    name: str
    route_port: int
    routes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NatsConfig:
    """The values that differ between servers. Sizes in bytes."""

    name: str
    address: NatsAddress
    folder: Path
    max_payload: int = 8 * MEGABYTE
    max_file_store: int | None = None
    sync_always: bool = True
    monitor_port: int | None = None
    cluster: Cluster | None = None


def render(config: NatsConfig) -> str:
    """The text of nats.conf. Paths are relative to the server's working folder, so that they stay valid when the
    home is moved or a folder above it is closed."""
    lines = [
        f"server_name: {_quoted(config.name)}",
        "host: 127.0.0.1",
        f"port: {config.address.port}",
        f"authorization {{ token: {_quoted(config.address.token)} }}",
        f"max_payload: {config.max_payload}",
        # A subscriber that replays the log receives much at once; the default of 64 MB would disconnect it.
        f"max_pending: {max(256 * MEGABYTE, 8 * config.max_payload)}",
        "log_file: nats.log",
        f"logfile_size_limit: {16 * MEGABYTE}",
        "logfile_max_num: 3",
        *_jetstream(config),
        *([f'http: "127.0.0.1:{config.monitor_port}"'] if config.monitor_port else []),
        *(_cluster(config.cluster) if config.cluster else []),
    ]
    return "\n".join(lines) + "\n"


def _jetstream(config: NatsConfig) -> list[str]:
    return [
        "jetstream {",
        "  store_dir: store",
        # Without it an acknowledged message may be lost for two minutes after a power cut.
        *(["  sync_interval: always"] if config.sync_always else []),
        *([f"  max_file_store: {config.max_file_store}"] if config.max_file_store else []),
        "}",
    ]


def _cluster(cluster: Cluster) -> list[str]:
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in cluster.routes)
    return [
        "cluster {",
        f"  name: {_quoted(cluster.name)}",
        f'  listen: "127.0.0.1:{cluster.route_port}"',
        f"  routes: [{routes}]",
        "}",
    ]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read_address(text: str) -> NatsAddress | None:
    """Returns the address in a nats.conf written by render; None if the file is missing or incomplete."""
    port = re.search(r"^port: (\d+)$", text, re.MULTILINE)
    token = re.search(r'^authorization \{ token: "([\w-]+)" \}$', text, re.MULTILINE)
    return NatsAddress(int(port[1]), token[1]) if port and token else None
