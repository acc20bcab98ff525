"""Limits how many requests of one user this process runs at once, so that one user cannot delay all others.

The throttle counts answers. Reads, and requests on their way to the throttle, take connections and processor time
before anything counts them. Here, a few of one user's requests run at once, more wait their turn, and too many are
refused.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from turnlog.agent import metrics
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError

Kind = Literal["reads", "asks"]
AT_ONCE = 4  # of 16 connections, of which a context takes two
WAITING = 100
PATIENCE_S = 10.0
RETRY_S = 2.0


class TooManyWaiting(TurnlogError):
    """Too many requests of the user wait in this process for the user's other requests (429)."""

    code = "too-many-waiting"
    retry_after_s = RETRY_S


@dataclass(slots=True)
class Share:
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    requests: int = 0


class Shares(dict[tuple[str, str, Kind], Share]):
    def __init__(self, _: Runtime) -> None:
        super().__init__()


@contextlib.asynccontextmanager
async def in_share(runtime: Runtime, tenant: str, user: str, kind: Kind) -> AsyncIterator[None]:
    """Runs the block as one of the user's AT_ONCE requests of this kind in this process, in order of arrival.

    Raises TooManyWaiting if WAITING others are already waiting, or after PATIENCE_S.
    """
    shares = runtime.cached(Shares)
    share = shares.setdefault((tenant, user, kind), Share())
    if share.requests >= AT_ONCE + WAITING:
        raise _refusal(kind)
    share.requests += 1
    try:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await share.places.acquire()
        except TimeoutError:
            raise _refusal(kind) from None
        try:
            yield
        finally:
            share.places.release()
    finally:
        share.requests -= 1
        if not share.requests:
            shares.pop((tenant, user, kind), None)


def _refusal(kind: Kind) -> TooManyWaiting:
    metrics.WAITING_REFUSALS.labels(kind).inc()
    return TooManyWaiting(f"too many of your {kind} are waiting; send fewer at a time")
