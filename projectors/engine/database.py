"""Opens connections for the engine and for lookups, and takes the advisory locks that fence projectors."""

import zlib
from collections.abc import Sequence

import psycopg
from pgvector import HalfVector
from psycopg import AsyncConnection
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.json import set_json_loads
from pydantic_core import from_json

from turnlog.events.errors import DatabaseUnavailable
from turnlog.projectors.engine.writer import Connection

SCHEMA = "turnlog"
CONNECT_TIMEOUT_S = 10
FROZEN_S = 10.0
IDLE_IN_TRANSACTION_S = 60


async def connect(database_url: str, search_path: str = SCHEMA) -> Connection:
    """Opens an autocommit connection with this search_path. Raises DatabaseUnavailable."""
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


class _AsBinary(Dumper):
    """Sends a HalfVector in binary, which takes a 50th of the time of text; the statement casts it to halfvec."""

    format = Format.BINARY

    def dump(self, obj: HalfVector) -> bytes:
        return obj.to_binary()


async def configure(conn: Connection) -> None:
    """Configures a connection to parse JSON with pydantic, which takes a third of the standard library's time, and to
    send vectors in binary."""
    set_json_loads(from_json, conn)
    conn.adapters.register_dumper(HalfVector, _AsBinary)


def session_options(search_path: str = SCHEMA) -> str:
    """Returns the session options of a connection with this search_path.

    TCP keepalive: the server notices within half a minute that a machine has vanished, and frees its locks. Times are
    returned in UTC: days computed from them must not depend on the server's time zone. JIT is off: the planner
    overestimates recursive statements a thousandfold. If a process is stopped or its event loop is blocked, its
    transaction ends after IDLE_IN_TRANSACTION_S and releases its row locks.
    """
    alive = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    idle = f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_S * 1_000}"
    return f"-c search_path={search_path},{SCHEMA},public -c timezone=UTC -c jit=off {alive} {idle}"


async def take_locks(conn: Connection, names: Sequence[str], build: str, partition: int) -> bool:
    """Takes session advisory locks on (projection, build, partition); takes none and returns False unless all are free.

    The locks end with the connection, as does every transaction that relied on them.
    """
    keys = [lock_key(name, build) for name in sorted(names)]
    # If two sessions try at once, the second fails at the first lock and does not take the others.
    rows = await conn.execute(
        "SELECT CASE WHEN pg_try_advisory_lock(%s, %s) "
        "THEN (SELECT bool_and(pg_try_advisory_lock(key, %s)) FROM unnest(%s::int[]) AS key) END",
        (keys[0], partition, partition, keys),
    )
    if await rows.fetchone() == (True,):
        return True
    await conn.execute("SELECT pg_advisory_unlock_all()")
    return False


async def end_frozen(conn: Connection, key: int, partition: int) -> None:
    """Ends the sessions that hold this advisory lock and have sent nothing for FROZEN_S.

    A healthy holder sends a query every second, so the process of a silent session is stopped or blocked. Postgres
    rolls back its open transaction.
    """
    await conn.execute(
        "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
        "WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.classid::bigint = %s "
        "AND l.objid::bigint = %s AND a.datname = current_database() AND a.state <> 'active' "
        "AND a.state_change < clock_timestamp() - make_interval(secs => %s)",
        (key % 2**32, partition % 2**32, FROZEN_S),
    )


async def is_locked(conn: Connection, name: str, build: str, partition: int) -> bool:
    """Returns whether a session holds the lock that take_locks takes for this name."""
    rows = await conn.execute(
        "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid::bigint = %s "
        "AND objid::bigint = %s AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        (lock_key(name, build) % 2**32, partition % 2**32),
    )
    return await rows.fetchone() is not None


def lock_key(name: str, build: str) -> int:
    return zlib.crc32(f"{name}/{build}".encode()) - 2**31
