"""The value that use cases and workers work on: log, pool, models, settings; composed in consumers/runtime.py."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from turnlog.agent.settings import Settings
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import NotProjectedInTime, first_behind, wait_for

if TYPE_CHECKING:
    from turnlog.agent.models.factory import Models
    from turnlog.projectors.engine.engine import Runner

Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]
T = TypeVar("T")

TRUSTED_S = 1.0
SETTLE_S = 60.0


@dataclass(slots=True)
class Runtime:
    """What a use case or a worker needs. pool: for lookups; its connections are autocommit.

    started: names of the servers that this process started. when_behind: starts projectors in this process before a
    read waits for rows.
    """

    settings: Settings
    nats_url: str
    database_url: str
    log: Log
    pool: Pool
    started: tuple[str, ...] = ()
    runners: "list[Runner]" = field(default_factory=list)
    when_behind: Callable[[], Awaitable[None]] | None = None
    _models: "Models | None" = None
    _kept: dict[Callable[["Runtime"], Any], Any] = field(default_factory=dict)

    @property
    def models(self) -> "Models":
        """The models that the settings name, made at the first use; the composition root closes them."""
        if self._models is None:
            from turnlog.agent.models.factory import make_models  # loads for a tenth of a second

            self._models = make_models(self.settings)
        return self._models

    def catching_up(self) -> bool:
        """Whether projectors of this process have much to apply: background work then leaves the processor to them."""
        return any(runner.catching_up for runner in self.runners)

    def kept(self, make: Callable[["Runtime"], T]) -> T:
        """What `make` returns for this runtime, made at the first call: caches that several use cases share."""
        if make not in self._kept:
            self._kept[make] = make(self)
        return cast(T, self._kept[make])

    async def close_models(self) -> None:
        if self._models is not None:
            await self._models.close()
            self._models = None

    async def settle(self, timeout_s: float = SETTLE_S, names: Sequence[str] = ()) -> None:
        """Waits until the named projections, or all, have applied what is in the log now. Raises NotProjectedInTime."""
        if not names:
            from turnlog.projectors.models.registry import BY_NAME  # a tenth of a second for all read models

            names = tuple(BY_NAME)
        heads = {at: await self.log.partition_head(at) for at in range(self.log.partitions)}
        await self._applied(names, heads, timeout_s)

    async def settle_thread(self, tenant: str, thread: str, names: Sequence[str], timeout_s: float = SETTLE_S) -> int:
        """Waits until the named projections have applied the thread's last event, and for no later one.

        Returns the event's sequence, 0 for a thread without events. Raises NotProjectedInTime, LogUnavailable.
        """
        head = await self.log.thread_head(tenant, thread)
        if head:
            await self._applied(names, {await self.log.partition_of(tenant, thread, head): head}, timeout_s)
        return head

    async def _applied(self, names: Sequence[str], heads: Mapping[int, int], timeout_s: float) -> None:
        """Connections that a restart of Postgres ended fail until the pool checks those that are left."""
        doubted_at = time.monotonic() + 2 * TRUSTED_S
        while True:
            try:
                async with self.pool.connection() as conn:
                    for partition, head in heads.items():
                        if self.when_behind and await first_behind(conn, names, partition, head):
                            await self.when_behind()
                        await wait_for(conn, names, partition, head, timeout_s)
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
