"""How far the projections and the embedder are behind the log. Health checks ask often: this loads no read model."""

from turnlog.agent.embedding.backlog import Backlog, read_backlog
from turnlog.agent.runtime import Runtime
from turnlog.projectors.engine.lag import Lag, lag


async def projection_lag(runtime: Runtime) -> list[Lag]:
    """Every live projection by name and partition. Raises LogUnavailable."""
    async with runtime.pool.connection() as conn:
        return await lag(runtime.log, conn)


async def embedding_backlog(runtime: Runtime) -> Backlog:
    """Texts without a vector of the configured model, of all tenants, and how fast the embedder was lately."""
    async with runtime.pool.connection() as conn:
        waits = any(one.catching_up for one in await lag(runtime.log, conn))
        return await read_backlog(conn, runtime.settings.vector_model, waits)
