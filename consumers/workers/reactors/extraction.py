"""The extraction reactor: extracts memories from users' words, outside the answer's path.

Several deliveries of a thread are handled together. Results of the rules are stored at once. The model runs when a
batch is full or a turn has waited for the maximum age. After several failures, the extraction by the model is given up,
and an event records this. Waiting conversations are kept in memory, and a periodic sweep finds them in the read models
after a restart.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from turnlog.agent.memory.extraction.evidence import roles
from turnlog.agent.memory.extraction.extraction_run import NAME, extraction_of, locked
from turnlog.agent.memory.extraction.stages import UserConversation
from turnlog.agent.models.errors import BreakerOpen, ModelError, ModelRefused
from turnlog.agent.models.factory import Models
from turnlog.agent.operations.dead_letters import EVENT_ERRORS
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.events.errors import InvalidEvent, NotFound, TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.stored import recorded
from turnlog.events.tasks import pause
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.extraction_lookup import behind, users_between

logger = logging.getLogger("turnlog.consumers")
READS = ("messages", "thread_activity")
PAUSES_S = (30.0, 120.0, 600.0, 3_600.0, 10_800.0)
BREAKER_S = 30.0
POLL_S, RESCAN_S = 1.0, 600.0


@dataclass(slots=True)
class Waiting:
    """A conversation that waits for the model. due: monotonic time; failures: the model's failures so far."""

    due: float
    failures: int = 0


class ExtractionReactor:
    """Extracts memories. Its durable consumer calls work() with the deliveries of one thread; sweep() runs beside it.
    Raises InvalidRules."""

    def __init__(
        self, runtime: Runtime, models: Models, *, pauses_s: Sequence[float] = PAUSES_S, poll_s: float = POLL_S
    ) -> None:
        """Creates the reactor. pauses_s: the pause after each failure of the model; after one more failure the
        extraction by the model is given up. poll_s: the pause between two rounds of `sweep`."""
        self._runtime, self._uses_model = runtime, models.extraction is not None
        self._pauses_s, self._poll_s = pauses_s, poll_s
        self._extraction = extraction_of(runtime, models)
        self._roles = roles(runtime.settings.extract_tool_results)
        self._waiting: dict[UserConversation, Waiting] = {}

    async def work(self, deliveries: list[Delivery]) -> None:
        seqs = sorted(delivery.seq for delivery in deliveries)
        try:
            event = recorded(await self._runtime.log.stored(seqs[-1])).event
        except (InvalidEvent, NotFound):
            return  # the event was erased, or the projectors park it
        async with self._runtime.pool.connection() as conn:
            await wait_for(conn, READS, deliveries[0].partition, seqs[-1])
            users = await users_between(conn, event.tenant, event.thread, self._roles, seqs[0], seqs[-1])
            for user in users:
                conversation = UserConversation(event.tenant, user, event.thread)
                async with locked(conn, conversation):
                    await self._extraction.by_rules(conn, conversation)
                    await self._by_model(conn, conversation, flush=False)

    async def sweep(self, stop: asyncio.Event, beat: Heartbeat) -> None:
        """Runs the model on conversations that have waited long enough, until `stop` is set."""
        rescan_at = 0.0
        while not stop.is_set():
            beat.beat()
            try:
                if time.monotonic() >= rescan_at:
                    async with self._runtime.pool.connection() as conn:
                        for tenant, user, thread in await behind(conn, self._roles):
                            self._wait(UserConversation(tenant, user, thread))
                    rescan_at = time.monotonic() + RESCAN_S
                await self._due(beat)
            except (TurnlogError, psycopg.Error, OSError) as error:
                logger.warning("%s waits: %s", NAME, error)
            await pause(stop, self._poll_s)

    def _wait(self, conversation: UserConversation) -> None:
        self._waiting.setdefault(conversation, Waiting(time.monotonic() + self._runtime.settings.extract_max_age_s))

    async def _due(self, beat: Heartbeat) -> None:
        now = time.monotonic()
        for conversation in [conversation for conversation, waiting in self._waiting.items() if waiting.due <= now]:
            async with self._runtime.pool.connection() as conn:
                with contextlib.suppress(RetryLater):  # another worker has the lock, and the next round tries again
                    async with locked(conn, conversation):
                        await self._by_model(conn, conversation, flush=True)
            beat.beat()

    async def _by_model(self, conn: Connection, conversation: UserConversation, flush: bool) -> None:
        """Runs the model on a conversation. It never raises a model's error; the model's part is retried later. flush:
        True runs the model on a batch that is not full."""
        known = self._waiting.get(conversation)
        if known is not None and known.failures and not flush:
            return
        try:
            pending = await self._extraction.by_model(conn, conversation, flush)
        except RetryLater as later:
            self._waiting[conversation] = Waiting(time.monotonic() + later.seconds, known.failures if known else 0)
        except BreakerOpen as error:  # no call was made
            wait_s = error.retry_after_s or BREAKER_S
            self._waiting[conversation] = Waiting(time.monotonic() + wait_s, known.failures if known else 0)
        except (ModelError, *EVENT_ERRORS) as error:
            met = error if isinstance(error, ModelError) else ModelError(f"{type(error).__name__}: {error}")
            await self._failed(conn, conversation, known.failures + 1 if known else 1, met)
        else:
            if pending.nothing:
                self._waiting.pop(conversation, None)
            else:
                self._wait(conversation)

    async def _failed(self, conn: Connection, conversation: UserConversation, failures: int, error: ModelError) -> None:
        if failures <= len(self._pauses_s) and not isinstance(error, ModelRefused):
            wait_s = max(error.retry_after_s or 0.0, self._pauses_s[failures - 1])
            self._waiting[conversation] = Waiting(time.monotonic() + wait_s, failures)
            logger.warning("%s: the model failed %d times, again in %.0f s: %s", NAME, failures, wait_s, error)
            return
        await self._extraction.give_up(conn, conversation, error)
        logger.warning("%s: model given up after %d failures, only rules are used: %s", NAME, failures, error)
        self._waiting[conversation] = Waiting(time.monotonic())  # there may be more turns after the batch
