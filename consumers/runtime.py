"""The composition root: settings → servers → log, database and models → roles, and back in reverse order."""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from weakref import WeakKeyDictionary

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from psycopg_pool import AsyncConnectionPool

from turnlog.agent.access.secret import secret_of
from turnlog.agent.conversations.sessions.session_cache import SUSPECT_S
from turnlog.agent.privacy.keys.key_copies import checked_keks
from turnlog.agent.privacy.keys.user_keys import KeyStore, opened_keys
from turnlog.agent.privacy.secret_policy import SecretPolicies
from turnlog.agent.runtime import TRUSTED_S, Pool, Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers import servers as embedded
from turnlog.consumers.sync_bridge import LoopThread
from turnlog.events.append import Screen
from turnlog.events.contracts import Event
from turnlog.events.errors import DatabaseUnavailable, LogUnavailable
from turnlog.events.heartbeats import Heartbeat, Heartbeats
from turnlog.events.log import Log
from turnlog.events.personal_data_caches import forget_all
from turnlog.events.signing import Signer
from turnlog.events.subjects import watch_type_anywhere
from turnlog.migrations.upgrade import is_current, upgrade
from turnlog.projectors.engine.database import configure, session_options
from turnlog.projectors.engine.row_security import ROLE, SETTING, make_usable
from turnlog.projectors.engine.same_log import guarded
from turnlog.projectors.engine.writer import Connection

TYPES = ("erased", "user_erased", "turn_redacted", "turns_expired")
SWITCH_S = 0.0005  # Python's default of 5 ms would delay each of the few round trips of an append


@contextlib.asynccontextmanager
async def forgetting(log: Log) -> AsyncIterator[None]:
    """Empties caches after erasures, redactions and the expiry of turns while the block runs; twice, because a running
    read may refill one."""
    again: set[asyncio.TimerHandle] = set()
    loop = asyncio.get_running_loop()

    async def hear(message: Msg) -> None:
        forget_all()
        for timer in again:
            timer.cancel()
        again.clear()
        again.add(loop.call_later(SUSPECT_S, forget_all))

    subs = []
    with contextlib.suppress(NatsError, OSError):  # already closed: the next use of the log raises
        subs = [await log.nc.subscribe(watch_type_anywhere(type_), cb=hear) for type_ in TYPES]
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        for sub in subs:
            with contextlib.suppress(NatsError, OSError):  # the subscription ended with its connection
                await sub.unsubscribe()


PATIENCE_S = 60.0
CONNECTIONS = 16  # for eight answers that read at once, each with two connections; other answers wait for the model
THROTTLE_CONNECTIONS = 2
REQUEST_STATEMENT_S = 60.0  # limit of a request's statements: one question must not keep Postgres busy for long
# The pool doubles its pauses between attempts to reconnect, and starts again with a short pause after this time.
# Otherwise it could still wait for a long time after the server is back.
RECONNECT_S = 2.0
PROJECTORS_ROUND_S = 120.0  # for one batch
UPGRADE_ROUND_S = 3_600.0  # for one batch, or for creating the indexes of large tables


@contextlib.asynccontextmanager
async def servers(settings: Settings) -> AsyncIterator[embedded.Servers]:
    """Yields the URLs of the servers. If one is not configured, starts the embedded servers and holds a lease on them
    while the block runs."""
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
    """Opens servers, a migrated database, the log and a pool; starts no role. Raises TurnlogErrors."""
    settings = embedded.without_own_addresses(settings)
    async with servers(settings) as where:
        await _migrate(where.database_url)
        async with connection_pool(where.database_url) as pool:
            signer = Signer(lambda: secret_of(settings).events, settings.trusted_through)
            log = await Log.connect(where.nats_url, settings.stream, name, signer=signer)
            try:
                beats = Heartbeats()
                async with (
                    guarded(log, pool, beats),
                    _keys(settings, where, pool, log, beats) as keys,
                    forgetting(log),
                ):
                    log.use_keys(keys)
                    log.use_screen(_screen(settings, log))
                    runtime = Runtime(settings, where.nats_url, where.database_url, log, pool, where.started)
                    runtime.name, runtime.heartbeats, runtime.own_preferences = name, beats, _team_preferences
                    try:
                        yield runtime
                    finally:
                        await runtime.close()
            finally:
                await log.close()


@contextlib.asynccontextmanager
async def opened_in_time(settings: Settings, name: str, say: Callable[[str], None]) -> AsyncIterator[Runtime]:
    """Opens as `opened` does, for a process in the background: waits up to PATIENCE_S for servers that cannot be
    reached."""
    deadline, reported = time.monotonic() + PATIENCE_S, ""
    async with contextlib.AsyncExitStack() as stack:
        while True:
            try:
                runtime = await stack.enter_async_context(opened(settings, name))
                break
            except (DatabaseUnavailable, LogUnavailable) as error:
                if time.monotonic() > deadline:
                    raise
                if error.code != reported:
                    say(f"waiting up to {PATIENCE_S:g} s: {error}")
                reported = error.code
                await asyncio.sleep(1.0)
        yield runtime


async def _migrate(database_url: str) -> None:
    if not await is_current(database_url):
        await asyncio.to_thread(upgrade, database_url)


def _team_preferences(runtime: Runtime) -> Mapping[str, str]:
    from turnlog.agent.team.configured import team_preferences  # only needed for names that turnlog does not define

    return team_preferences(runtime)


def _screen(settings: Settings, log: Log) -> Screen:
    policies = SecretPolicies(log)
    if settings.sanitise_before_publish is None:
        return policies.screen
    from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel
    from turnlog.agent.privacy.screening import screen_of  # its tables take a tenth of a second to load

    level = screen_of(SanitiseLevel[settings.sanitise_before_publish], settings.phone_regions.split(","))

    async def screen(events: Sequence[Event]) -> list[Event]:
        return await level(await policies.screen(events))

    return screen


@contextlib.asynccontextmanager
async def _keys(
    settings: Settings, where: embedded.Servers, pool: Pool, log: Log, beats: Heartbeats
) -> AsyncIterator[KeyStore | None]:
    """Yields the store of users' keys; None without a key-encryption key. Raises InvalidKek, WrongKek,
    KeyUnavailable."""
    async with pool.connection() as conn:
        keks = await checked_keks(settings, conn, log)
    async with opened_keys(log.nc, where.database_url, keks, beats) as store:
        yield store


class _LastUse:
    """Checks a pooled connection, which a restart of Postgres may have closed, unless it worked within TRUSTED_S."""

    def __init__(self) -> None:
        self._at: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()

    async def note(self, conn: Connection) -> None:
        self._at[conn] = time.monotonic()

    async def forget_tenant(self, conn: Connection) -> None:
        await conn.execute(f"RESET {SETTING}".encode())
        await self.note(conn)

    async def check(self, conn: Connection) -> None:
        if time.monotonic() - self._at.get(conn, 0.0) > TRUSTED_S:
            await AsyncConnectionPool.check_connection(conn)


@contextlib.asynccontextmanager
async def connection_pool(database_url: str, role: str | None = None, most: int = CONNECTIONS) -> AsyncIterator[Pool]:
    """Yields a pool of at most `most` connections. role: the role of row-level security. Every connection starts with
    it, so that RESET ROLE returns to it."""
    last_use = _LastUse()
    pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
        database_url,
        min_size=1,
        max_size=most,
        open=False,
        configure=configure,
        check=last_use.check,
        reset=last_use.forget_tenant if role else last_use.note,
        reconnect_timeout=RECONNECT_S,
        reconnect_failed=AsyncConnectionPool.check,  # starts new attempts
        kwargs={
            "autocommit": True,
            "options": session_options() + (_of_requests(role) if role else ""),
            "prepare_threshold": 3,
        },
    )
    async with pool:
        yield pool


def _of_requests(role: str) -> str:
    return f" -c role={role} -c statement_timeout={REQUEST_STATEMENT_S * 1_000:.0f}"


@contextlib.asynccontextmanager
async def row_security(runtime: Runtime) -> AsyncIterator[None]:
    """Makes Runtime.for_tenant work while the block runs. Raises NoTenantRole."""
    async with runtime.pool.connection() as conn:
        await make_usable(conn)
    async with connection_pool(runtime.database_url, ROLE) as runtime.roles:
        try:
            yield
        finally:
            runtime.roles = None


@contextlib.asynccontextmanager
async def throttle_connections(runtime: Runtime) -> AsyncIterator[None]:
    """Gives the throttle its own connections while the block runs, so that it works when the main pool is exhausted."""
    async with connection_pool(runtime.database_url, most=THROTTLE_CONNECTIONS) as runtime.admissions:
        try:
            yield
        finally:
            runtime.admissions = None


@contextlib.asynccontextmanager
async def projecting(
    runtime: Runtime, partitions: Sequence[int] | None = None, shared: bool = False
) -> AsyncIterator[None]:
    """Runs the projectors in this process while the block runs. If another process runs them, these wait to take over.
    Read models of an earlier version are rebuilt at the same time.

    shared: True divides the partitions evenly among all processes that pass it (workers); others take any that is free.
    """
    from turnlog.projectors.engine.engine import Runner  # loading it with all read models takes a quarter of a second
    from turnlog.projectors.engine.sharing import Share
    from turnlog.projectors.models.registry import PROJECTIONS
    from turnlog.projectors.rebuild.upgrade import note_earlier, rebuild_earlier

    async with runtime.pool.connection() as conn:
        is_earlier = bool(await note_earlier(conn, PROJECTIONS))
    chosen = range(runtime.log.partitions) if partitions is None else partitions
    share = Share(runtime.database_url, len(chosen)) if shared else None
    runners = [Runner(runtime.log, runtime.database_url, PROJECTIONS, partition, share) for partition in chosen]
    runtime.runners.extend(runners)
    running, stop = partial(runtime.heartbeats.running, "projectors"), asyncio.Event()

    async def rebuild(beat: Heartbeat) -> None:
        beat.round_s = UPGRADE_ROUND_S
        await rebuild_earlier(runtime.log, runtime.database_url, PROJECTIONS, stop, beat.beat)
        beat.round_s = math.inf  # nothing is left to do
        await stop.wait()

    async with contextlib.AsyncExitStack() as stack:
        if share is not None:
            await stack.enter_async_context(running("projectors-share", partial(share.run, stop), stop, grace_s=None))
        for at, runner in zip(chosen, runners, strict=True):
            name = f"projectors-{at}"
            await stack.enter_async_context(running(name, runner.run, stop, PROJECTORS_ROUND_S, grace_s=None))
        if is_earlier:
            await stack.enter_async_context(running("projectors-upgrade", rebuild, stop))
        try:
            yield
        finally:
            for runner in runners:
                runner.stop()


@contextlib.asynccontextmanager
async def projecting_when_behind(runtime: Runtime) -> AsyncIterator[None]:
    """Starts `projecting` when a wait first finds that read models are behind the log; for programs that only read."""
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> None:
            runtime.when_behind = None
            await stack.enter_async_context(projecting(runtime))

        runtime.when_behind = start
        yield


@contextlib.asynccontextmanager
async def in_own_thread(
    runtime: Runtime, playing: Callable[[Runtime], AbstractAsyncContextManager[None]]
) -> AsyncIterator[None]:
    """Runs roles (`playing`) in a thread with its own event loop and connections while the block runs. A program that
    blocks the event loop of `runtime` then does not delay their work, for which others wait.

    Meanwhile threads take turns every 0.5 ms (sys.setswitchinterval), so that busy roles do not delay calls.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    thread, there = LoopThread(f"{runtime.name}-roles"), contextlib.AsyncExitStack()

    async def play() -> None:
        own = await there.enter_async_context(opened(runtime.settings, runtime.name))
        await there.enter_async_context(playing(own))
        runtime.runners = own.runners  # a read that waits too long reports the runners' last error

    try:
        try:
            await thread.awaited(play())
            yield
        finally:
            await thread.awaited(there.aclose())
    finally:
        sys.setswitchinterval(before)
        await asyncio.to_thread(thread.close)
