"""The extraction reactor: memories from what users said (M1, M2; seed E 8.7), off the answer's path.

Several deliveries of a thread are one look at it. The rules' part is stored at once, whatever becomes of the model's:
that waits for a batch's worth of words or for its age, and after a bound of failures it is given up, visibly (E 13.3).
What waits is remembered by the process that saw it, and found again by a look at the read models now and then.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import psycopg

from turnlog.agent.memories.extraction import Talk
from turnlog.agent.memories.llm_extraction import ModelExtraction, extraction_task
from turnlog.agent.memories.rules import load_rules
from turnlog.agent.memories.service import Memories
from turnlog.agent.memories.turns import roles
from turnlog.agent.models.errors import BreakerOpen, ModelError, ModelRefused
from turnlog.agent.models.factory import Models
from turnlog.consumers.inbox import Delivery, Later
from turnlog.consumers.reactors.budget import ledger
from turnlog.consumers.reactors.extraction_run import Extraction
from turnlog.consumers.runtime import Runtime
from turnlog.events.errors import InvalidEvent, NotFound, TurnlogError
from turnlog.events.read import recorded
from turnlog.projectors.extraction_lookup import behind, users_between
from turnlog.projectors.lag import wait_for
from turnlog.projectors.writer import Connection

logger = logging.getLogger("turnlog.consumers")
NAME = "extraction"
READS = ("messages", "thread_activity")
PAUSES_S = (30.0, 120.0, 600.0, 3_600.0, 10_800.0)  # after each failure of a model; after one more it is given up
BREAKER_S = 30.0
POLL_S, RESCAN_S = 1.0, 600.0


class NotNow(TurnlogError):
    """The budget of the hour is spent, or another worker is at it."""

    code = "not-now"


@dataclass(slots=True)
class Waiting:
    """A conversation's words for the model. due: monotonic time; failures: of the model, so far."""

    due: float
    failures: int = 0


def extraction_of(runtime: Runtime, models: Models, shadow: str | None = None) -> Extraction:
    """By the rules, the prompt and the model of the settings. Raises InvalidRules, InvalidPrompt."""
    settings, chat = runtime.settings, models.extraction
    rules, task = load_rules(settings.rules_file), extraction_task(settings.extract_prompt_file)
    model = None if chat is None else ModelExtraction(chat, rules, task, settings.zone)
    memories = Memories(runtime.log, runtime.pool)
    return Extraction(runtime, rules, model, ledger(NAME, settings, is_local=False), memories, shadow)


class ExtractionReactor:
    """work() is what its Inbox calls with deliveries of one thread; sweep() runs beside it. Raises InvalidRules."""

    def __init__(self, runtime: Runtime, models: Models) -> None:
        self._runtime, self._uses_model = runtime, models.extraction is not None
        self._extraction = extraction_of(runtime, models)
        self._roles = roles(runtime.settings.extract_tool_results)
        self._waiting: dict[Talk, Waiting] = {}

    async def work(self, deliveries: list[Delivery]) -> None:
        seqs = sorted(delivery.seq for delivery in deliveries)
        try:
            event = recorded(await self._runtime.log.stored(seqs[-1])).event
        except (InvalidEvent, NotFound):
            return  # the projectors park it, visibly; or it was erased
        async with self._runtime.pool.connection() as conn:
            await wait_for(conn, READS, deliveries[0].partition, seqs[-1])
            users = await users_between(conn, event.tenant, event.thread, self._roles, seqs[0], seqs[-1])
            for user in users:
                talk = Talk(event.tenant, user, event.thread)
                async with locked(conn, talk):
                    await self._extraction.by_rules(conn, talk)
                    await self._by_model(conn, talk, flush=False)

    async def sweep(self, stop: asyncio.Event) -> None:
        """Hands the model what has waited long enough. Ends with stop."""
        rescan_at = 0.0
        while self._uses_model and not stop.is_set():
            try:
                if time.monotonic() >= rescan_at:
                    await self._find_waiting()
                    rescan_at = time.monotonic() + RESCAN_S
                await self._due()
            except (TurnlogError, psycopg.Error, OSError) as error:
                logger.warning("%s waits: %s", NAME, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await stop.wait()

    async def _find_waiting(self) -> None:
        async with self._runtime.pool.connection() as conn:
            for tenant, user, thread in await behind(conn, self._roles):
                self._wait(Talk(tenant, user, thread))

    def _wait(self, talk: Talk) -> None:
        self._waiting.setdefault(talk, Waiting(time.monotonic() + self._runtime.settings.extract_max_age_s))

    async def _due(self) -> None:
        now = time.monotonic()
        for talk in [talk for talk, waiting in self._waiting.items() if waiting.due <= now]:
            async with self._runtime.pool.connection() as conn:
                with contextlib.suppress(Later):  # another worker is at it: the next round looks again
                    async with locked(conn, talk):
                        await self._by_model(conn, talk, flush=True)

    async def _by_model(self, conn: Connection, talk: Talk, flush: bool) -> None:
        """Never raises what the model did wrong: the rules' part is stored, and the rest has its own time."""
        known = self._waiting.get(talk)
        if known is not None and known.failures and not flush:
            return
        try:
            pending = await self._extraction.by_model(conn, talk, flush)
        except Later as later:
            self._waiting[talk] = Waiting(time.monotonic() + later.seconds, known.failures if known else 0)
        except BreakerOpen as error:  # no call was made
            wait_s = error.retry_after_s or BREAKER_S
            self._waiting[talk] = Waiting(time.monotonic() + wait_s, known.failures if known else 0)
        except ModelError as error:
            await self._failed(conn, talk, known.failures + 1 if known else 1, error)
        else:
            if pending.nothing:
                self._waiting.pop(talk, None)
            else:
                self._wait(talk)

    async def _failed(self, conn: Connection, talk: Talk, failures: int, error: ModelError) -> None:
        if failures <= len(PAUSES_S) and not isinstance(error, ModelRefused):
            wait_s = max(error.retry_after_s or 0.0, PAUSES_S[failures - 1])
            self._waiting[talk] = Waiting(time.monotonic() + wait_s, failures)
            logger.warning("%s: the model failed %d times, again in %.0f s: %s", NAME, failures, wait_s, error)
            return
        await self._extraction.give_up(conn, talk, error)
        logger.warning("%s: given up after %d failures, rules only: %s", NAME, failures, error)
        self._waiting[talk] = Waiting(time.monotonic())  # there may be more behind the batch


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """For work that somebody waits for and nobody delivers again. Raises NotNow in place of Later."""
    try:
        yield
    except Later as later:
        raise NotNow(f"{later}; what is done is stored: run it again in {max(1.0, later.seconds):.0f} s") from later


@contextlib.asynccontextmanager
async def locked(conn: Connection, talk: Talk, shadow: str = "") -> AsyncIterator[None]:
    """Of the session; a dead worker's lock ends with its connection. A shadow has its own. Raises Later."""
    name = f"{NAME}/{shadow}/{talk.tenant}/{talk.thread}/{talk.user}"
    rows = await conn.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 5))", (name,))
    if await rows.fetchone() != (True,):
        raise Later(2.0, "another worker extracts from this thread")
    try:
        yield
    finally:
        with contextlib.suppress(psycopg.Error):  # the connection is lost, and with it the lock
            await conn.execute("SELECT pg_advisory_unlock_all()")
