"""The composition root: settings → servers → log, database and models → roles, and back in reverse order."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from turnlog.agent import embedded
from turnlog.agent.privacy.kek import keks_of
from turnlog.agent.privacy.key_admin import refuse_other_keks
from turnlog.agent.privacy.keys import KeyStore, opened_keys
from turnlog.agent.settings import Settings
from turnlog.consumers.forgetting import forgetting
from turnlog.events.append import Screen, unchanged
from turnlog.events.errors import DatabaseUnavailable, LogUnavailable
from turnlog.events.log import Log
from turnlog.migrations.current import is_current
from turnlog.projectors.database import configure, connect, session_options
from turnlog.projectors.engine import Runner
from turnlog.projectors.lag import NotProjectedInTime, wait_for
from turnlog.projectors.registry import BY_NAME, PROJECTIONS
from turnlog.projectors.sharing import Share
from turnlog.projectors.writer import Connection

PATIENCE_S = 60.0
Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]
TRUSTED_S = 1.0


@dataclass(slots=True)
class Runtime:
    """Everything a command or a worker needs. pool: for lookups; its connections are autocommit."""

    settings: Settings
    nats_url: str
    database_url: str
    log: Log
    pool: Pool
    started: tuple[str, ...] = ()
    runners: list[Runner] = field(default_factory=list)

    async def settle(self, timeout_s: float = 60.0, names: Sequence[str] = tuple(BY_NAME)) -> None:
        """Waits until the named projections have applied all that is in the log now. Raises NotProjectedInTime.

        A connection that a restart of Postgres ended is tried in vain until the pool doubts those that are left.
        """
        doubted_at = time.monotonic() + 2 * TRUSTED_S
        while True:
            try:
                async with self.pool.connection() as conn:
                    for partition in range(self.log.partitions):
                        await self._wait(conn, partition, tuple(names), timeout_s)
                return
            except psycopg.OperationalError:
                if time.monotonic() > doubted_at:
                    raise
            await asyncio.sleep(TRUSTED_S / 10)

    async def _wait(self, conn: Connection, partition: int, names: tuple[str, ...], timeout_s: float) -> None:
        try:
            await wait_for(conn, names, partition, await self.log.partition_head(partition), timeout_s)
        except NotProjectedInTime as error:
            causes = [runner.last_error for runner in self.runners if runner.last_error]
            if not causes:
                raise
            raise NotProjectedInTime(f"{error} Last error: {causes[0]}") from error


@contextlib.asynccontextmanager
async def servers(settings: Settings) -> AsyncIterator[embedded.Servers]:
    """The servers the settings name, or the embedded ones, held by a lease while the block runs."""
    if settings.nats_url and settings.database_url:
        yield embedded.Servers(settings.nats_url, settings.database_url, ())
        return
    async with embedded.lease(settings.home):
        own = await embedded.start(settings.home)
        yield embedded.Servers(
            settings.nats_url or own.nats_url, settings.database_url or own.database_url, own.started
        )


@contextlib.asynccontextmanager
async def opened(settings: Settings, name: str = "turnlog") -> AsyncIterator[Runtime]:
    """Servers, a migrated database, the log and a pool; no role runs yet. Raises TurnlogErrors."""
    async with servers(settings) as where:
        await _migrate(where.database_url)
        async with connection_pool(where.database_url) as pool, _keys(settings, where.database_url, pool) as keys:
            log = await Log.connect(where.nats_url, settings.stream, name, keys, _screen(settings))
            try:
                async with forgetting(log):
                    yield Runtime(settings, where.nats_url, where.database_url, log, pool, where.started)
            finally:
                await log.close()


@contextlib.asynccontextmanager
async def opened_in_time(settings: Settings, name: str, say: Callable[[str], None]) -> AsyncIterator[Runtime]:
    """As `opened`, for a process that nobody watches start: waits up to PATIENCE_S for servers that are away."""
    deadline, told = time.monotonic() + PATIENCE_S, ""
    async with contextlib.AsyncExitStack() as stack:
        while True:
            try:
                runtime = await stack.enter_async_context(opened(settings, name))
                break
            except (DatabaseUnavailable, LogUnavailable) as error:
                if time.monotonic() > deadline:
                    raise
                if error.code != told:
                    say(f"waiting up to {PATIENCE_S:g} s: {error}")
                told = error.code
                await asyncio.sleep(1.0)
        yield runtime


async def _migrate(database_url: str) -> None:
    if not await is_current(database_url):
        from turnlog.migrations.upgrade import upgrade  # Alembic takes a quarter of a second to load

        await asyncio.to_thread(upgrade, database_url)


def _screen(settings: Settings) -> Screen:
    if settings.sanitise_before_publish is None:
        return unchanged
    from turnlog.agent.privacy.entering import screen_of  # its tables take a tenth of a second to load
    from turnlog.agent.privacy.sanitise import SanitiseLevel

    return screen_of(SanitiseLevel[settings.sanitise_before_publish], settings.phone_regions.split(","))


@contextlib.asynccontextmanager
async def _keys(settings: Settings, database_url: str, pool: Pool) -> AsyncIterator[KeyStore | None]:
    """Users' keys, or none without a key-encryption key. Raises InvalidKek, WrongKek."""
    keks = keks_of(settings)
    async with pool.connection() as conn:
        await refuse_other_keks(conn, keks)
    async with opened_keys(database_url, keks) as store:
        yield store


class _LastUse:
    """A restart of Postgres leaves dead connections behind; one that worked a moment ago is taken at its word."""

    def __init__(self) -> None:
        self._at: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()

    async def note(self, conn: Connection) -> None:
        self._at[conn] = time.monotonic()

    async def check(self, conn: Connection) -> None:
        if time.monotonic() - self._at.get(conn, 0.0) > TRUSTED_S:
            await AsyncConnectionPool.check_connection(conn)


@contextlib.asynccontextmanager
async def connection_pool(database_url: str) -> AsyncIterator[Pool]:
    await (await connect(database_url)).close()
    last_use = _LastUse()
    pool: Pool = AsyncConnectionPool(
        database_url,
        min_size=1,
        max_size=16,  # eight answers under way hold one each, and a second one while memories are sought
        open=False,
        configure=configure,
        check=last_use.check,
        reset=last_use.note,
        kwargs={"autocommit": True, "options": session_options(), "prepare_threshold": 3},
    )
    async with pool:
        yield pool


@contextlib.asynccontextmanager
async def projecting(
    runtime: Runtime, partitions: Sequence[int] | None = None, shared: bool = False
) -> AsyncIterator[None]:
    """Runs the projectors in this process. Where another process already does, these stand by.

    shared: all processes that say so divide the partitions evenly (workers); the others take what is free.
    """
    chosen = range(runtime.log.partitions) if partitions is None else partitions
    share = Share(runtime.database_url, len(chosen)) if shared else None
    runners = [Runner(runtime.log, runtime.database_url, PROJECTIONS, partition, share) for partition in chosen]
    runtime.runners.extend(runners)
    stop = asyncio.Event()
    tasks = [asyncio.create_task(runner.run(), name=f"projectors-{at}") for at, runner in enumerate(runners)]
    if share is not None:
        tasks.append(asyncio.create_task(share.run(stop), name="projectors-share"))
    try:
        yield
    finally:
        stop.set()
        for runner in runners:
            runner.stop()
        await asyncio.gather(*tasks)
