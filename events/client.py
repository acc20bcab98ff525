"""A NATS client that no message can stop.

The subject and headers of a message are bytes of a stranger's choice, and nats-py ends its reading for good at bytes
that are no UTF-8: one such publish would stop every reader of the stream. Here the message is delivered, with escapes
for what is no text, and is parked like any other that nobody can read.
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
        """An attempt that broke off after its connection was made leaves the socket open, and nats-py forgets it."""
        left: Any = self._transport
        if left:
            left.close()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Without a connection nobody takes what is left to send; nats-py would break off in mid-close."""
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. Raises TimeoutError.

    Python 3.11's asyncio.wait_for may swallow a cancellation, after which nats-py would try to connect for ever: the
    work is cancelled until it ends.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        if not task.cancelled():
            task.exception()  # looked at, though who is cancelled here asks no more
    if task.cancelled():
        raise TimeoutError
    return task.result()
