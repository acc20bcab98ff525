"""A NATS client that survives messages with invalid headers or subjects.

Publishers choose the bytes of a subject and of headers, and nats-py stops reading at bytes that are not UTF-8, so one
such message would stop every reader of the stream. This client escapes the invalid bytes of a subject, so the
projectors park the message like any other undecodable one, and drops headers that it cannot decode.
"""

import random
from typing import Any

from nats.aio.client import Client

# A silent server, for instance behind a broken network, is given up after 3.75 s; the cluster has elected another
# leader by then. Two pings may be unanswered, because a busy process may miss one reply.
LOST_SERVER: dict[str, Any] = {
    "ping_interval": 1.25,
    "max_outstanding_pings": 2,
    "connect_timeout": 2.0,
    "dont_randomize": True,  # a lost server is then tried after all others
    "max_reconnect_attempts": -1,
}


def servers_of(url: str) -> list[str]:
    """Returns the servers of NATS_URL in random order, so that clients are spread over them."""
    servers = [part.strip() for part in url.split(",")]
    return random.sample(servers, len(servers))


class RobustClient(Client):
    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        readable = subject.decode(errors="backslashreplace").encode()
        return super()._build_message(sid, readable, reply, data, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            parsed: dict[str, str] | None = await super()._process_headers(headers)
        except ValueError:
            return None
        return parsed

    async def connect(self, *args: Any, **options: Any) -> None:
        try:
            await super().connect(*args, **options)
        except BaseException:
            self._forget_socket()
            raise

    async def _connect_to_server(self, s: Any) -> None:
        self._forget_socket()
        await super()._connect_to_server(s)

    async def _attempt_reconnect(self) -> None:
        """Reconnects after dropping data that the lost server has not received; nats-py would wait until it is sent."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._attempt_reconnect()

    def _forget_socket(self) -> None:
        """Closes the socket of an attempt that connected and then failed; nats-py leaves the socket open."""
        left: Any = self._transport
        if left:
            left.close()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Closes the client. Without a connection, unsent data is dropped first, because nats-py would fail while
        closing."""
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)
