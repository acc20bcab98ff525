"""Defines the runtime of operations and workers: log, pool, models and settings. consumers/runtime.py composes it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from uuid import UUID

import psycopg
from nats.js.api import ConsumerInfo
from nats.js.errors import NotFoundError
from uuid_utils.compat import uuid7

from turnlog.agent.settings import Settings
from turnlog.events.heartbeats import Heartbeats
from turnlog.events.log import Log, nats_errors
from turnlog.events.subjects import STREAM, check_tenant
from turnlog.projectors.engine.lag import NotProjectedInTime, first_behind, wait_for
from turnlog.projectors.engine.row_security import SETTING
from turnlog.projectors.engine.writer import Connection

if TYPE_CHECKING:
    from turnlog.agent.models.factory import Models
    from turnlog.agent.models.protocol import Embedder
    from turnlog.projectors.engine.engine import Runner

T = TypeVar("T")

TRUSTED_S = 1.0
PROJECTED_S = 60.0
GIVE_WAY_S, LOOK_AGAIN_S = 60.0, 0.1


class Pool(Protocol):
    """Lends autocommit connections."""

    def connection(self, timeout: float | None = None) -> AbstractAsyncContextManager[Connection]: ...


@dataclass(frozen=True, slots=True)
class TenantPool:
    """Lends connections that see only one tenant's rows. roles: a pool whose connections have the role of row-level
    security."""

    roles: Pool
    tenant: str

    @contextlib.asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncIterator[Connection]:
        async with self.roles.connection(timeout) as conn:
            await conn.execute("SELECT set_config(%s, %s, false)", (SETTING, self.tenant))
            yield conn


@dataclass(slots=True)
class Runtime:
    """The resources of an operation or a worker. pool: connections for lookups.

    started: names of the servers that this process started. when_behind: starts projectors in this process before a
    read waits for rows. api_url: the URL at which this process serves HTTP. roles: see TenantPool; open while
    `row_security` of consumers/runtime.py runs. admissions: connections for the throttle alone. name: the name of the
    process, such as turnlog-up. heartbeats: those of the loops that must not end. system: for the runtime of one
    tenant, the runtime that it was made from. own_preferences: returns the names of the application's own preferences,
    each with "text" or "list".
    """

    settings: Settings
    nats_url: str
    database_url: str
    log: Log
    pool: Pool
    started: tuple[str, ...] = ()
    runners: "list[Runner]" = field(default_factory=list)
    when_behind: Callable[[], Awaitable[None]] | None = None
    api_url: str | None = None
    roles: Pool | None = None
    admissions: Pool | None = None
    name: str = "turnlog"
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    process_id: UUID = field(default_factory=uuid7)
    system: "Runtime | None" = None
    own_preferences: Callable[["Runtime"], Mapping[str, str]] = lambda _: {}
    _models: "Models | None" = None
    _kept: dict[Callable[["Runtime"], Any], Any] = field(default_factory=dict)
    _closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def for_tenant(self, tenant: str) -> "Runtime":
        """Returns this runtime with a pool that sees only one tenant's rows (row-level security), for operations of a
        request.

        Models, caches and waiting are those of this runtime. It must not be used for work that changes rows or reads
        several tenants: erasing, dead letters, rebuilds, jobs, keys, doctor. Raises InvalidToken.
        """
        check_tenant(tenant)
        assert self.roles is not None, "row_security is not open"
        return replace(self, pool=TenantPool(self.roles, tenant), system=self.system or self)

    @property
    def models(self) -> "Models":
        """Returns the models that the settings name, created at first use; the composition root closes them."""
        if self.system is not None:
            return self.system.models
        if self._models is None:
            from turnlog.agent.models.factory import make_models  # takes a tenth of a second to load

            self._models = make_models(self.settings)
        return self._models

    async def embedder(self) -> "Embedder":
        """Waits until it is known which model makes the vectors; returns the embedder."""
        await self.models.embedder.ready()
        return self.models.embedder

    async def vector_model(self) -> str:
        """Returns the model name under which vectors are stored. Loads no model if the settings tell the name."""
        return (await self.embedder()).model if self.settings.may_lack_embeddings else self.settings.vector_model

    def catching_up(self) -> bool:
        """Returns whether projectors of this process have much to apply, so that background work should leave them the
        processor."""
        return any(runner.catching_up for runner in self.runners)

    async def give_way(self, stop: asyncio.Event, at_most_s: float = GIVE_WAY_S) -> None:
        """Waits while projectors of this process catch up, until `stop` is set, but at most `at_most_s`, so that no
        work starves."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                while self.catching_up() and not stop.is_set():
                    await asyncio.sleep(LOOK_AGAIN_S)

    def cached(self, make: Callable[["Runtime"], T]) -> T:
        """Returns the result of `make` for this runtime, such as a cache that several operations share; `make` is
        called only once.

        The runtime of a tenant shares these results with the runtime that it was made from, which is passed to `make`.
        """
        if make not in self._kept:
            self._kept[make] = make(self.system or self)
        return cast(T, self._kept[make])

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Registers a function that the composition root calls at the end, to close a resource that was opened
        meanwhile."""
        self._closing.append(close)

    async def close(self) -> None:
        """Closes the models and all other resources that were opened meanwhile."""
        for close in self._closing:
            await close()
        self._closing.clear()
        await self.close_models()

    async def close_models(self) -> None:
        if self._models is not None:
            await self._models.close()
            self._models = None

    @contextlib.asynccontextmanager
    async def reading(
        self,
        *names: str,
        of: tuple[str, str] | None = None,
        timeout_s: float = PROJECTED_S,
        without: Sequence[str] = (),
    ) -> AsyncIterator[Connection]:
        """Yields a connection once the named projections, or all, have applied the events that are on the log now.

        of: tenant and thread; only the last event of this thread must be applied, and names must be given. without,
        timeout_s: as in wait_until_projected. Raises NotProjectedInTime, LogUnavailable.
        """
        if of is None:
            await self.wait_until_projected(timeout_s, names, without)
        else:
            await self.wait_until_thread_projected(*of, names, timeout_s, without)
        async with self.pool.connection() as conn:
            yield conn

    async def wait_until_projected(
        self,
        timeout_s: float = PROJECTED_S,
        names: Sequence[str] = (),
        without: Sequence[str] = (),
        turns_of: str | None = None,
    ) -> None:
        """Waits until the named projections, or all, have applied the events that are on the log now. Raises
        NotProjectedInTime, LogUnavailable.

        without: projections that are not waited for while they are rebuilt for a newer version. turns_of: a tenant;
        only its turns must be applied, not later events such as those of the embedder.
        """
        if not names:
            from turnlog.projectors.models.registry import BY_NAME  # takes a tenth of a second to load

            names = tuple(BY_NAME)
        await self._applied(names, await self.log.heads(turns_of), timeout_s, without)

    async def wait_until_thread_projected(
        self,
        tenant: str,
        thread: str,
        names: Sequence[str],
        timeout_s: float = PROJECTED_S,
        without: Sequence[str] = (),
    ) -> int:
        """Waits until the named projections have applied the thread's last event.

        without: as in wait_until_projected. Returns the sequence of the event; 0 for a thread without events.

        Raises NotProjectedInTime, LogUnavailable.
        """
        head = await self.log.thread_head(tenant, thread)
        if head:
            heads = {await self.log.partition_of(tenant, thread, head): head}
            await self._applied(names, heads, timeout_s, without)
        return head

    async def _applied(
        self, names: Sequence[str], heads: Mapping[int, int], timeout_s: float, without: Sequence[str]
    ) -> None:
        """Waits until the projections have applied `heads`: {partition: sequence}. Failing connections are retried for
        two seconds, because after a restart of Postgres they fail until the pool has checked them."""
        if self.system is not None:
            return await self.system._applied(names, heads, timeout_s, without)
        doubted_at = time.monotonic() + 2 * TRUSTED_S
        while True:
            try:
                async with self.pool.connection() as conn:
                    for partition, head in heads.items():
                        if self.when_behind and await first_behind(conn, names, partition, head, without):
                            await self.when_behind()
                        await wait_for(conn, names, partition, head, timeout_s, without)
                return
            except NotProjectedInTime as error:
                causes = [runner.last_error for runner in self.runners if runner.last_error]
                if not causes:
                    raise
                raise NotProjectedInTime(f"{error} Last error: {causes[0]}") from error
            except psycopg.OperationalError:
                if time.monotonic() > doubted_at:
                    raise
            await asyncio.sleep(TRUSTED_S / 10)


async def finished_through(runtime: Runtime, reactor: str) -> int:
    """Returns the sequence up to which a reactor has finished all events; 0 before its first start. Raises
    LogUnavailable."""
    info = await reactor_consumer(runtime, reactor)
    return info.ack_floor.stream_seq if info is not None and info.ack_floor else 0


async def reactor_consumer(runtime: Runtime, reactor: str) -> ConsumerInfo | None:
    """Returns the state of a reactor's durable consumer in NATS; None if there is none. Raises LogUnavailable."""
    with nats_errors(f"cannot ask NATS where {reactor} is"):
        try:
            info: ConsumerInfo = await runtime.log.nc.jetstream().consumer_info(STREAM, reactor)
        except NotFoundError:
            return None
    return info
