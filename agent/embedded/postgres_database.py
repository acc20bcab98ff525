"""The `turnlog` database inside the embedded Postgres."""

from pathlib import Path
from urllib.parse import quote

import psycopg

SUPERUSER = "turnlog"
DATABASE = "turnlog"
PORT = 5432


def url_at(sockets: Path) -> str:
    """The URL for psycopg and SQLAlchemy. It names the port, lest a PGPORT of the caller's leads astray."""
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(sockets), safe='')}&port={PORT}"


async def is_ready(sockets: Path) -> bool:
    """Whether the server takes statements; makes the database when it is not there yet."""
    try:
        async with await _connect(sockets, "postgres") as connection:
            found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
            if await found.fetchone() is None:
                await _make_database(sockets, connection)
    except psycopg.OperationalError:
        return False
    return True


async def _make_database(sockets: Path, connection: "psycopg.AsyncConnection[tuple[object, ...]]") -> None:
    """The extension goes into the template first, so no crash leaves a database without it."""
    async with await _connect(sockets, "template1") as template:
        await template.execute("CREATE EXTENSION IF NOT EXISTS vector")
    await connection.execute(f"CREATE DATABASE {DATABASE}")


async def _connect(sockets: Path, database: str) -> "psycopg.AsyncConnection[tuple[object, ...]]":
    return await psycopg.AsyncConnection.connect(
        host=str(sockets), port=PORT, user=SUPERUSER, dbname=database, autocommit=True, connect_timeout=5
    )
