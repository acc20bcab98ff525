"""A real nats-server and a real Postgres under one data folder, from wheels: no Docker, no service (O1).

`start` starts what is not running and attaches to what is; `lease` keeps both alive while a process needs
them and lets the last one out stop them; `stop` ends both; `status` says what runs.
"""

from turnlog.agent.embedded.errors import ServerStartFailed, ServerStopFailed
from turnlog.agent.embedded.servers import (
    Running,
    ServerOptions,
    Servers,
    Status,
    keep,
    lease,
    start,
    status,
    stop,
)

__all__ = [
    "Running",
    "ServerOptions",
    "ServerStartFailed",
    "ServerStopFailed",
    "Servers",
    "Status",
    "keep",
    "lease",
    "start",
    "status",
    "stop",
]
