"""Reads a session from the nearest level that has it: memory, bucket, Postgres, and last the log.

Each copy is compared with the end of the log and completed from it. A copy is returned unchecked only if it is in
memory and its subscription got no message of another writer since it was compared, or while the log is unavailable.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from turnlog.agent.conversations.sessions.bucket import Bucket
from turnlog.agent.conversations.sessions.session_cache import HotCopies
from turnlog.agent.conversations.sessions.tail import Copy, follow, from_log
from turnlog.agent.runtime import Pool
from turnlog.events.errors import LogUnavailable, NotFound, TurnlogError
from turnlog.events.log import Log
from turnlog.projectors.models.sessions.lookup import SegmentCheckpoint, segment_checkpoints, session_state

Level = Literal["ram", "kv", "postgres", "log"]
POSTGRES_PATIENCE_S, POSTGRES_AWAY_S = 2.0, 2.0
T = TypeVar("T")
Lookup = Callable[[AsyncConnection[TupleRow], str, str], Awaitable[T]]
logger = logging.getLogger("turnlog.sessions")


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    """The result of a query to Postgres. answered: False if Postgres did not answer."""

    answer: T | None
    answered: bool


@dataclass(frozen=True, slots=True)
class FoundSession:
    """The session that a level returned. copy: None if there is no session. compared: it was compared with the log.

    changed: it differs from the copy in the bucket.
    """

    copy: Copy | None
    level: Level
    compared: bool = True
    changed: bool = True


class Levels:
    """The levels of one tenant's sessions."""

    def __init__(self, log: Log, pool: Pool, tenant: str) -> None:
        self._log, self._pool, self._tenant = log, pool, tenant
        self._postgres_away_until = 0.0
        self.hot = HotCopies(log.nc, tenant)
        self.bucket = Bucket(log, tenant)

    async def current(self, thread: str) -> tuple[Copy, Level]:
        """Returns the present session. Raises NotFound, LogUnavailable if no level can answer, and FutureEventVersion
        if the log contains an event of a newer turnlog."""
        held = self.hot.find(thread)
        if held is not None and held.copy is not None:
            if self.hot.is_current(held):
                return held.copy, "ram"
            if (followed := await self._from_memory(thread, held.copy)) is not None:
                return followed, "ram"
        return await self._load(thread)

    async def keep(self, thread: str, copy: Copy, checked: tuple[float, int]) -> None:
        """Stores a copy in memory and in the bucket, unless it contains turns of other threads. checked:
        HotCopies.now() when its check began."""
        if copy.borrows:
            return
        await self.hot.join(thread)
        self.hot.put(thread, copy, *checked)
        await self.bucket.write(copy)

    async def drop(self, thread: str) -> None:
        """Drops the copies of the session in memory and in the bucket."""
        await self.hot.leave(thread)
        await self.bucket.purge(thread)

    async def checkpoints(self, thread: str) -> list[SegmentCheckpoint] | None:
        """Returns the checkpoints in Postgres; None while it is unavailable."""
        return (await self._ask_postgres(segment_checkpoints, thread)).answer

    async def _from_memory(self, thread: str, copy: Copy) -> Copy | None:
        """Returns the copy in memory, completed from the log; None if it can no longer be used."""
        checked = self.hot.now()
        try:
            followed = await follow(self._log, self._tenant, thread, copy)
        except LogUnavailable:
            return copy
        if followed is None:
            self.hot.forget(thread)
            return None
        if followed.state is None:
            await self.drop(thread)
            raise no_session(thread)
        self.hot.put(thread, followed, *checked)
        return followed

    async def _load(self, thread: str) -> tuple[Copy, Level]:
        await self.hot.join(thread)
        checked = self.hot.now()
        try:
            session = await self._nearest(thread)
            if session.copy is None or session.copy.state is None:
                raise no_session(thread)
        except TurnlogError:
            await self.hot.leave(thread)
            raise
        if not session.compared:
            self.hot.put(thread, session.copy, None, 0)
        elif session.changed:
            await self.keep(thread, session.copy, checked)
        else:
            self.hot.put(thread, session.copy, *checked)
        return session.copy, session.level

    async def _nearest(self, thread: str) -> FoundSession:
        if (session := await self._from_bucket(thread)) is not None:
            return session
        row = await self._ask_postgres(session_state, thread)
        if row.answer is not None:
            session = await self._completed(thread, Copy(row.answer, row.answer.seq), "postgres")
            if session is not None:
                return session
        try:
            return FoundSession(await from_log(self._log, self._tenant, thread), "log")
        except LogUnavailable:
            if row.answered:
                return FoundSession(None, "postgres", compared=False)
            raise

    async def _from_bucket(self, thread: str) -> FoundSession | None:
        copy = await self.bucket.read(thread)
        if copy is None:
            return None
        session = await self._completed(thread, copy, "kv")
        if session is None or session.copy is None:
            return None
        if session.copy.state is None:
            await self.bucket.purge(thread)
        return replace(session, changed=session.copy.state is not copy.state)

    async def _completed(self, thread: str, copy: Copy, level: Level) -> FoundSession | None:
        """Returns the copy with later events applied; None if it cannot be used."""
        try:
            followed = await follow(self._log, self._tenant, thread, copy)
        except LogUnavailable:
            return FoundSession(copy, level, compared=False)
        return FoundSession(followed, level) if followed is not None else None

    async def _ask_postgres(self, lookup: Lookup[T | None], thread: str) -> _Answer[T]:
        """Asks Postgres. After a failure it is not asked for POSTGRES_AWAY_S."""
        if time.monotonic() < self._postgres_away_until:
            return _Answer(None, False)
        try:
            async with asyncio.timeout(POSTGRES_PATIENCE_S), self._pool.connection(POSTGRES_PATIENCE_S) as conn:
                return _Answer(await lookup(conn, self._tenant, thread), True)
        except (psycopg.Error, OSError, TimeoutError) as error:
            logger.info("Postgres does not answer for sessions: %r", error)
            self._postgres_away_until = time.monotonic() + POSTGRES_AWAY_S
            return _Answer(None, False)


def no_session(thread: str) -> NotFound:
    """Returns the same error for a missing session and one of another user, so that it reveals nothing about other
    users."""
    return NotFound(
        f"conversation {thread!r} has no session of yours; `turnlog session create` or ShortTermMemory.create() begins "
        "one, where the conversation is nobody else's"
    )
