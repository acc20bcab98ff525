"""A NATS client that survives messages with invalid headers or subjects.

Any publisher chooses the bytes of a subject and of headers, and nats-py stops reading at bytes that are not UTF-8:
one such message would stop every reader of the stream. This client delivers the message with the invalid bytes
escaped; the projectors park it like any other undecodable one.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from nats.aio.client import Client

T = TypeVar("T")
CANCEL_AGAIN_S = 0.1


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


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """Returns the work's result. Raises TimeoutError.

    Python 3.11's asyncio.wait_for may swallow a cancellation, after which nats-py would try to connect without end:
    here the work is cancelled until it ends.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not log it as never retrieved
    if task.cancelled():
        raise TimeoutError
    return task.result()
