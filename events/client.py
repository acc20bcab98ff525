"""A NATS client that survives messages with invalid headers or subjects.

Any publisher chooses the bytes of a subject and of headers, and nats-py stops reading at bytes that are not UTF-8:
one such message would stop every reader of the stream. This client delivers the message with the invalid bytes
escaped; the projectors park it like any other undecodable one.
"""

from typing import Any

from nats.aio.client import Client


class RobustClient(Client):
    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        readable = subject.decode(errors="backslashreplace").encode()
        return super()._build_message(sid, readable, reply, data, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
        except ValueError:
            return None
        return found

    async def connect(self, *args: Any, **options: Any) -> None:
        try:
            await super().connect(*args, **options)
        except BaseException:
            self._forget_socket()
            raise

    async def _connect_to_server(self, s: Any) -> None:
        self._forget_socket()
        await super()._connect_to_server(s)

    def _forget_socket(self) -> None:
        """Closes the socket of an attempt that failed after it had connected; nats-py leaves it open."""
        left: Any = self._transport
        if left:
            left.close()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Drops unsent data when there is no connection; nats-py would fail in the middle of closing."""
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)
