"""Connections of the engine and of lookups, and the advisory locks that fence projectors."""

import zlib
from collections.abc import Sequence

import psycopg
from psycopg import AsyncConnection
from psycopg.types.json import set_json_loads
from pydantic_core import from_json

from turnlog.events.errors import DatabaseUnavailable
from turnlog.projectors.tables import SCHEMA
from turnlog.projectors.writer import Connection

CONNECT_TIMEOUT_S = 10


async def connect(database_url: str, search_path: str = SCHEMA) -> Connection:
    """An autocommit connection whose unqualified names mean `search_path` first. Raises DatabaseUnavailable."""
    try:
        conn = await AsyncConnection.connect(
            database_url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            prepare_threshold=3,
            options=session_options(search_path),
        )
    except psycopg.Error as error:
        raise DatabaseUnavailable(
            f"cannot connect to Postgres: {str(error).strip()}. Check DATABASE_URL, or unset it to use the "
            "embedded server"
        ) from error
    await configure(conn)
    return conn


async def configure(conn: Connection) -> None:
    """What every connection of ours has, a pool's too: JSON is read by pydantic's parser, which takes a third of the
    time of the standard library's."""
    set_json_loads(from_json, conn)


def session_options(search_path: str = SCHEMA) -> str:
    """Where unqualified names are looked for, and what every session of ours has.

    The server notices within half a minute that a machine vanished, for it frees what that one locked. Times come back
    in UTC: days that are worked out from them must not depend on the server's own clock. No statement is compiled
    before it runs: the planner expects a recursive one to read a thousand times what it reads.
    """
    alive = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    return f"-c search_path={search_path},{SCHEMA},public -c timezone=UTC -c jit=off {alive}"


async def take_locks(conn: Connection, names: Sequence[str], build: str, partition: int) -> bool:
    """Session advisory locks on (projection, build, partition): all of them, or none and False.

    They end with the connection, and with it every transaction that relied on them.
    """
    for name in sorted(names):
        key = zlib.crc32(f"{name}/{build}".encode()) - 2**31
        row = await (await conn.execute("SELECT pg_try_advisory_lock(%s, %s)", (key, partition))).fetchone()
        if row is None or not row[0]:
            await conn.execute("SELECT pg_advisory_unlock_all()")
            return False
    return True
