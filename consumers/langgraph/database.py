"""Connections whose loss is a TurnlogError."""

import contextlib
from collections.abc import AsyncIterator

import psycopg

from turnlog.agent.runtime import Pool
from turnlog.events.errors import DatabaseUnavailable
from turnlog.projectors.engine.writer import Connection


@contextlib.asynccontextmanager
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    """A connection of the pool. Raises DatabaseUnavailable where Postgres is away or goes away."""
    try:
        async with pool.connection() as conn:
            yield conn
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise DatabaseUnavailable(
            f"Postgres does not answer: {str(error).strip()}. Check DATABASE_URL, or start it with `turnlog up`"
        ) from error
