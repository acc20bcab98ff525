"""Rebuilds and verifies read models."""

from collections.abc import Sequence

from turnlog.agent.runtime import Runtime
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.subjects import check_tenant
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.models.registry import PROJECTIONS, find
from turnlog.projectors.rebuild.build import assert_rebuildable
from turnlog.projectors.rebuild.rebuild import Rebuilt, rebuild_several
from turnlog.projectors.rebuild.replay import rebuild_tenant, rebuild_thread
from turnlog.projectors.rebuild.verify import Verified, verify_several


def projection_names() -> list[str]:
    return [projection.name for projection in PROJECTIONS]


async def rebuild(runtime: Runtime, name: str | None, on_progress: OnProgress) -> list[Rebuilt]:
    """Rebuilds one projection, or all if `name` is None, beside the live rows, and then switches to the new rows.

    Raises NotFound, RebuildStopped, RebuildRunning, SwitchRefused, RowsNotInLog.
    """
    return await rebuild_several(runtime.log, runtime.database_url, _chosen(name), on_progress)


async def rebuild_rows(
    runtime: Runtime,
    name: str | None,
    tenant: str,
    thread: str | None = None,
    on_progress: OnProgress = no_progress,
    from_seq: int = 1,
) -> list[Rebuilt]:
    """Rebuilds the rows of a thread or of a tenant in place. on_progress: counts projections. from_seq: if a tenant is
    rebuilt, only threads with an event at or after this sequence.

    name: None means every projection in which each row belongs to one thread. Raises NotFound, NotPerThread,
    RowsNotInLog, InvalidToken.
    """
    check_tenant(tenant)
    log, url = runtime.log, runtime.database_url
    chosen = [projection for projection in _chosen(name) if projection.per_thread or name is not None]
    async with runtime.pool.connection() as conn:
        await assert_rebuildable(log, conn)
    done = list[Rebuilt]()
    for projection in chosen:
        on_progress(len(done), len(chosen))
        if thread is None:
            done.append(await rebuild_tenant(log, url, projection, tenant, from_seq))
        else:
            done.append(await rebuild_thread(log, url, projection, tenant, thread))
    return done


async def verify(runtime: Runtime, name: str | None, on_progress: OnProgress) -> list[Verified]:
    """Rebuilds one projection, or all if `name` is None, beside the live rows, and compares the new rows with them.

    Raises NotFound, RebuildStopped, RebuildRunning.
    """
    chosen = _chosen(name)
    await runtime.wait_until_projected()
    return await verify_several(runtime.log, runtime.database_url, chosen, on_progress)


def _chosen(name: str | None) -> Sequence[Projection]:
    return PROJECTIONS if name is None else [find(name)]
