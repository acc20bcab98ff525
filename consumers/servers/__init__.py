"""A real nats-server and a real Postgres under one data folder, from wheels: no Docker, no service.

`start` starts the servers or attaches to running ones; `lease` keeps both running while a process needs them, and the
last lease stops them; `stop` ends both; `status` shows what runs.
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
