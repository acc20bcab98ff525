"""turnlog.open() opens servers, log, database and the roles that an embedding program needs; turnlog.connect() connects
to a server.

Both are used in `async with` or `with`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from turnlog.agent.settings import InvalidSetting, Settings, application_settings
from turnlog.consumers.sync_bridge import Blocking, Closed, LoopThread

if TYPE_CHECKING:
    from turnlog._memory import Memory

ROLES = ("projectors", "reactors", "agent")
LEAVE_S = 30.0
logger = logging.getLogger("turnlog")


class Opening:
    """The result of `turnlog.open` and `turnlog.connect`, before it is entered."""

    def __init__(self, opened: "Callable[[], AbstractAsyncContextManager[Memory]]") -> None:
        self._opened = opened
        self._held: AbstractAsyncContextManager[Memory] | None = None
        self._loop: LoopThread | None = None

    async def start(self) -> "Memory":
        """Opens without a block, as in a notebook, until `await memory.close()`. Raises the errors that a block
        raises.
        """
        return await self.__aenter__()

    async def __aenter__(self) -> "Memory":
        held = self._opened()
        memory = await held.__aenter__()
        self._held, memory._closes = held, self.__aexit__
        return memory

    async def __aexit__(self, *error: Any) -> None:
        """Closes once; a second call does nothing."""
        held, self._held = self._held, None
        if held is not None:
            await held.__aexit__(*(error or (None, None, None)))

    def __enter__(self) -> "Blocking[Memory]":
        self._loop = LoopThread("turnlog")
        try:
            return Blocking(self._loop.run(self.__aenter__()), self._loop)
        except BaseException:
            self._loop.close()
            raise

    def __exit__(self, *error: object) -> None:
        """Closes the memory; waits at most LEAVE_S and the time that a cancelled task takes."""
        assert self._loop is not None
        try:
            self._loop.run(self.__aexit__(None, None, None), LEAVE_S)
        except TimeoutError:
            logger.warning("turnlog did not close within %g s; running work was cancelled", LEAVE_S)
        finally:
            self._loop.close()


def open(
    home: str | Path | None = None,
    *,
    nats_url: str | None = None,
    database_url: str | None = None,
    tenant: str | None = None,
    roles: Sequence[str] = ROLES,
    **settings: Any,
) -> Opening:
    """Opens turnlog: `async with turnlog.open() as memory`, or `with` for the same methods without asyncio.

    Settings come from the environment and `.env`; arguments override them. OPENAI_API_KEY and OpenAI's other variables,
    which may be meant for another part of the program, are used only if `model`, `api_key` or `api_base_url` is given,
    or TURNLOG_MODEL, API_KEY or API_BASE_URL is set. nats_url, database_url: running servers; without them, embedded
    ones are started under `home` (TURNLOG_HOME) and shared by all processes with the same home. tenant: the tenant
    whose data is used. roles: what this process does besides serving calls: "projectors" fill the read models,
    "reactors" summarise, tag, embed and extract memories, "agent" answers `Thread.ask`. If `turnlog up` or a worker
    plays these roles too, projectors stand by and the other roles share the work; pass roles=() to leave all work to
    them. settings: any other setting by its name in turnlog.agent.settings, such as model="gpt-4o" or api_key="…".

    Raises InvalidSetting here, and DatabaseUnavailable, LogUnavailable or InvalidToken when the block begins.
    """
    arguments = {"home": home, "nats_url": nats_url, "database_url": database_url, "tenant": tenant, **settings}
    loaded = application_settings(**{name: value for name, value in arguments.items() if value is not None})
    return Opening(lambda: _opened(loaded, loaded.tenant, tuple(roles)))


def connect(url: str, *, key: str, patience_s: float = 10.0) -> Opening:
    """Connects to a turnlog server. Gives the methods of `turnlog.open` over HTTP, with `async with` or `with`.

    url: such as http://127.0.0.1:8484. key: a token (`turnlog token`) or an API key (`turnlog api-key create`); it
    determines tenant and user, so `user` may be None everywhere, and only a key with the scope act-as-user may name
    another one. patience_s: for how long a request is repeated while the server is unavailable; a repeated write is
    done once.

    Raises InvalidSetting here; each method may raise ServerUnavailable, Unauthenticated, TokenExpired or Forbidden.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidSetting(f"the server's URL {url[:200]!r} must begin with http:// or https://")
    return Opening(lambda: _connected(url, key, patience_s))


@contextlib.asynccontextmanager
async def _opened(settings: Settings, tenant: str, roles: Sequence[str]) -> "AsyncIterator[Memory]":
    from turnlog._memory import Memory
    from turnlog.agent.operations.role_processes import CLIENT
    from turnlog.consumers.roles import playing
    from turnlog.consumers.runtime import in_own_thread, opened
    from turnlog.events.subjects import check_tenant

    check_tenant(tenant)
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(opened(settings, CLIENT))
        in_thread = in_own_thread(runtime, lambda own: playing(own, roles)) if roles else playing(runtime, roles)
        await stack.enter_async_context(in_thread)
        await asyncio.to_thread(lambda: runtime.models)
        memory = Memory(runtime, tenant)
        try:
            yield memory
        finally:
            await memory._close()
            await stack.aclose()
            runtime.log = runtime.pool = runtime.settings = cast(Any, Closed())


@contextlib.asynccontextmanager
async def _connected(url: str, key: str, patience_s: float) -> "AsyncIterator[Memory]":
    from turnlog._http import Http
    from turnlog._remote import RemoteMemory

    http = Http(url, key, patience_s)
    async with http.client:
        memory = RemoteMemory(http)
        try:
            yield memory
        finally:
            await memory._close()
