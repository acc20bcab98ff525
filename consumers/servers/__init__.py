"""Runs a nats-server and a Postgres in one data folder, from Python wheels, without Docker or a system service.

`start` starts the servers or attaches to running servers; `lease` keeps both running while a process needs them, and
the end of the last lease stops them; `stop` ends both; `status` returns the running ones.
"""

from turnlog.consumers.servers.errors import ServerStartFailed, ServerStopFailed
from turnlog.consumers.servers.servers import (
    Servers,
    Status,
    change_subscriber,
    keep,
    lease,
    start,
    status,
    stop,
    without_own_addresses,
)

__all__ = [
    "ServerStartFailed",
    "ServerStopFailed",
    "Servers",
    "Status",
    "change_subscriber",
    "keep",
    "lease",
    "start",
    "status",
    "stop",
    "without_own_addresses",
]
