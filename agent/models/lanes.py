"""Lets answers go before background work at the same model server, because small servers do one thing at a time.

Background calls wait while an answer runs or waits at the server. A running background call is cancelled when an answer
comes, and repeated later. Within a process, only one background call runs at a time. PATIENCE_S after its beginning, a
background call neither waits nor is cancelled any more. Answers of other processes count as soon as this process is
told of them (`heard`), which takes a fraction of a second.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from turnlog.agent.settings import is_near
from turnlog.events.heartbeats import Heartbeat, Heartbeats
from turnlog.events.log import Log
from turnlog.events.subjects import ANSWERING
from turnlog.events.tasks import cancel

T = TypeVar("T")
AnswersFirst = Literal["auto", "always", "never"]
logger = logging.getLogger("turnlog.agent")
LOOK_AGAIN_S = 0.1
# After this time a background call no longer gives way, so that it does not starve.
PATIENCE_S = 300.0
# A process repeats its number of answers every SAY_AGAIN_S; after SILENT_S without a message it counts as dead.
SILENT_S, SAY_AGAIN_S = 3.0, 1.0


class Lane:
    """The order of calls at one model server, shared by all clients of this process."""

    def __init__(self, server: str, *, patience_s: float = PATIENCE_S, silent_s: float = SILENT_S) -> None:
        self.server, self._patience_s, self._silent_s = server, patience_s, silent_s
        self._here = 0
        self._elsewhere: dict[str, float] = {}
        self._has_background = False

    @property
    def answers_here(self) -> int:
        """Returns the number of this process's answers that run or wait at the server."""
        return self._here

    @property
    def is_answering(self) -> bool:
        """Returns whether an answer of any process runs or waits at the server."""
        return self._here > 0 or any(until > time.monotonic() for until in self._elsewhere.values())

    def heard(self, process: str, answers: int) -> None:
        """Records how many answers another process waits for now; the process must repeat it within `silent_s`."""
        if answers:
            self._elsewhere[process] = time.monotonic() + self._silent_s
        else:
            self._elsewhere.pop(process, None)

    @contextlib.contextmanager
    def answer(self) -> Iterator[None]:
        """Counts an answer as running or waiting at the server while the block runs."""
        self._here += 1
        try:
            yield
        finally:
            self._here -= 1

    async def background(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of work(), which is cancelled and called again if an answer comes meanwhile.

        Raises the errors of `work`.
        """
        patient_until = time.monotonic() + self._patience_s
        while True:
            while (self.is_answering or self._has_background) and time.monotonic() < patient_until:
                await asyncio.sleep(LOOK_AGAIN_S)
            self._has_background = True
            task = asyncio.ensure_future(work())
            try:
                while not task.done():
                    await asyncio.wait({task}, timeout=LOOK_AGAIN_S)
                    if not task.done() and self.is_answering and time.monotonic() < patient_until:
                        logger.debug("a background call of %s waits for an answer", self.server)
                        break
                else:
                    return task.result()
            finally:
                self._has_background = False
                await cancel(task)


_lanes: dict[str, Lane] = {}


def lane_of(base_url: str, mode: AnswersFirst = "auto") -> Lane | None:
    """Returns the lane of a server, which all clients of this process share; None if background calls need not wait for
    answers."""
    if mode == "never" or (mode == "auto" and not is_near(base_url)):
        return None
    server = urlsplit(base_url).netloc.rpartition("@")[2].lower()
    return _lanes.setdefault(server, Lane(server))


@contextlib.asynccontextmanager
async def telling_other_processes(log: Log, beats: Heartbeats) -> AsyncIterator[None]:
    """Exchanges the numbers of running answers with the other processes that use this log while the block runs.

    If a message is lost, or a process has no connection, the only effect is that background work may run beside an
    answer.
    """
    me, told = secrets.token_hex(8), dict[str, tuple[int, float]]()

    async def hear(message: Msg) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # messages may be malformed
            said = json.loads(message.data)
            if said["process"] != me and (lane := _lanes.get(said["server"])):
                lane.heard(said["process"], int(said["answers"]))

    async def tell(beat: Heartbeat) -> None:
        while True:
            beat.beat()
            now = time.monotonic()
            for lane in list(_lanes.values()):
                answers, (before, at) = lane.answers_here, told.get(lane.server, (0, now))
                if (answers > 0) != (before > 0) or (answers and now - at >= SAY_AGAIN_S):
                    told[lane.server] = (answers, now)
                    said = {"process": me, "server": lane.server, "answers": answers}
                    with contextlib.suppress(NatsError, OSError):
                        await log.nc.publish(ANSWERING, json.dumps(said).encode())
            await asyncio.sleep(LOOK_AGAIN_S)

    watching = await log.nc.subscribe(ANSWERING, cb=hear)
    try:
        async with beats.running("process", "lanes", tell, asyncio.Event()):
            yield
    finally:
        with contextlib.suppress(NatsError, OSError):  # the subscription ended with its connection
            await watching.unsubscribe()
