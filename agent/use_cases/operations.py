"""Operations on the read models as a whole: lag, rebuild, verify."""

from collections.abc import Callable, Sequence

from turnlog.agent.runtime import Runtime
from turnlog.events.subjects import check_tenant
from turnlog.projectors.engine.lag import Lag, lag
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.models.registry import PROJECTIONS, find
from turnlog.projectors.rebuild.build import Progress
from turnlog.projectors.rebuild.rebuild import Rebuilt, rebuild_several
from turnlog.projectors.rebuild.replay import rebuild_tenant, rebuild_thread
from turnlog.projectors.rebuild.verify import Verified, verify_several

OnProgress = Callable[[Progress], None]


async def projection_lag(runtime: Runtime) -> list[Lag]:
    """Every live projection by name and partition. Raises LogUnavailable."""
    async with runtime.pool.connection() as conn:
        return await lag(runtime.log, conn)


async def rebuild(runtime: Runtime, name: str | None, progress: OnProgress) -> list[Rebuilt]:
    """Rebuilds one projection, or all with None, beside the live rows and switches.

    Raises NotFound, RebuildStopped, RebuildRunning, SwitchRefused.
    """
    return await rebuild_several(runtime.log, runtime.database_url, _chosen(name), progress)


async def rebuild_rows(runtime: Runtime, name: str | None, tenant: str, thread: str | None = None) -> list[Rebuilt]:
    """Rebuilds the rows of a thread, or of a tenant, in place.

    name: None for every projection whose rows belong to one thread. Raises NotFound, NotPerThread, InvalidToken.
    """
    check_tenant(tenant)
    log, url = runtime.log, runtime.database_url
    chosen = [projection for projection in _chosen(name) if projection.per_thread or name is not None]
    if thread is None:
        return [await rebuild_tenant(log, url, projection, tenant) for projection in chosen]
    return [await rebuild_thread(log, url, projection, tenant, thread) for projection in chosen]


async def verify(runtime: Runtime, name: str | None, progress: OnProgress) -> list[Verified]:
    """Rebuilds one projection, or all with None, into a shadow and compares row for row.

    Raises NotFound, RebuildStopped, RebuildRunning.
    """
    chosen = _chosen(name)
    await runtime.settle()
    return await verify_several(runtime.log, runtime.database_url, chosen, progress)


def _chosen(name: str | None) -> Sequence[Projection]:
    return PROJECTIONS if name is None else [find(name)]
