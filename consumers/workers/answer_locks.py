"""Locks that keep two workers from paying for the same answer."""

import contextlib
from collections.abc import AsyncIterator

from turnlog.agent.conversations.locks import SharedLocks
from turnlog.agent.retry_later import Later
from turnlog.events.contracts import Event
from turnlog.projectors.engine.locks import LockFor

BUSY_S = 2.0
PATIENT = 5


@contextlib.asynccontextmanager
async def answered_alone(locks: SharedLocks, request: Event, attempt: int) -> AsyncIterator[None]:
    """Locks the request while the block runs; a dead worker's lock ends with its connection. Raises Later.

    If a worker's progress acks are late, its request is delivered to a second one; without the lock both would
    pay for a model's answer, and one would be discarded. After PATIENT attempts the second one continues without
    the lock, because the holder may be frozen. A holder whose connection is lost continues too: the log is read again
    before an answer is appended.
    """
    name = f"answer/{request.tenant}/{request.thread}/{request.id}"
    async with locks.lock(LockFor.ANSWER, name) as held:
        if not held and attempt <= PATIENT:
            raise Later(BUSY_S, f"another worker is at request {request.id}")
        yield
