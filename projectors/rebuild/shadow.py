"""Manages shadow tables, into which a rebuild or a verification writes and which live reads do not see."""

from collections.abc import Sequence
from typing import LiteralString

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from turnlog.projectors.engine.database import SCHEMA, take_locks
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.row_security import protection
from turnlog.projectors.engine.writer import Connection

_OF_A_BUILD = f"^{SCHEMA}_(rebuild|verify)_"  # not other schemas with this prefix, such as that of analytics
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


def schema_of(build: str) -> str:
    return f"{SCHEMA}_{build}"


async def create(conn: Connection, projections: Sequence[Projection], build: str) -> None:
    """Creates empty tables in a separate schema, with row-level security. The keys of tables in `keys_last` are created
    by `finish`, others at once."""
    await discard(conn, projections, build)
    await conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema_of(build))))
    for projection in projections:
        for table in projection.tables:
            await conn.execute(_ddl(CreateTable(table.to_metadata(sa.MetaData(), schema=schema_of(build)))))
            if table in projection.keys_last:
                await conn.execute(_key_sql("ALTER TABLE {table} DROP CONSTRAINT {name}", table, build))
    await conn.execute(protection(schema_of(build)).encode())


async def finish(conn: Connection, projections: Sequence[Projection], build: str) -> None:
    """Creates the missing keys and the indexes; indexes for approximate neighbours (HNSW) come last."""
    add_key: LiteralString = "ALTER TABLE {table} ADD CONSTRAINT {name} PRIMARY KEY ({columns})"
    for projection in projections:
        for table in projection.tables:
            if table in projection.keys_last:
                await conn.execute(_key_sql(add_key, table, build))
            shadow = table.to_metadata(sa.MetaData(), schema=schema_of(build))
            for index in sorted(shadow.indexes, key=lambda index: str(index.name)):
                await conn.execute(_ddl(CreateIndex(index)))
        for text in projection.last_sql:
            await conn.execute(text.encode())


# Gives up after half of deadlock_timeout. Each query locks its tables in its own order, so waiting longer could make a
# reader find a deadlock.
_SHORT_WAIT = """
SELECT set_config('statement_timeout', greatest(setting::int / 2, 1)::text, true) FROM pg_settings
WHERE name = 'deadlock_timeout'"""


async def hold_still(conn: Connection, projections: Sequence[Projection], build: str) -> None:
    """Blocks VACUUM and new indexes on the live and shadow tables until the transaction ends; reads and writes
    continue."""
    tables = _qualified(projections, SCHEMA) + _qualified(projections, schema_of(build))
    await conn.execute(sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(sql.SQL(", ").join(tables)))


async def lock_out(conn: Connection, projections: Sequence[Projection]) -> None:
    """Locks all live tables until the transaction ends. Gives up before a waiting reader could find a deadlock.

    It then raises QueryCanceled, and the caller must start the transaction again.
    """
    await conn.execute(_SHORT_WAIT)
    tables = sql.SQL(", ").join(_qualified(projections, SCHEMA))
    await conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(tables))
    await conn.execute("SET LOCAL statement_timeout TO DEFAULT")


def _qualified(projections: Sequence[Projection], schema: str) -> list[sql.Identifier]:
    return [sql.Identifier(schema, table.name) for projection in projections for table in projection.tables]


async def swap(conn: Connection, projections: Sequence[Projection], build: str) -> None:
    """Replaces the locked live tables with the shadow tables; the caller's transaction makes this atomic."""
    for table in (table for projection in projections for table in projection.tables):
        names = {
            "live": sql.Identifier(SCHEMA, table.name),
            "shadow": sql.Identifier(schema_of(build), table.name),
            "schema": sql.Identifier(SCHEMA),
        }
        await conn.execute(sql.SQL("DROP TABLE {live}").format(**names))
        await conn.execute(sql.SQL("ALTER TABLE {shadow} SET SCHEMA {schema}").format(**names))


async def discard(conn: Connection, projections: Sequence[Projection], build: str) -> None:
    """Removes everything that a build left behind, including an earlier build that crashed."""
    await conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema_of(build))))
    for table in ("projection_positions", "dead_letters"):
        await conn.execute(
            sql.SQL("DELETE FROM {} WHERE projection = ANY(%s) AND (build = %s OR starts_with(build, %s))").format(
                sql.Identifier(table)
            ),
            ([projection.name for projection in projections], build, f"{build}/"),
        )


async def discard_abandoned(conn: Connection) -> int:
    """Removes every abandoned build, for instance of a killed process, and returns their number.

    The connection must hold no advisory locks, because all of its locks are released.
    """
    rows = await conn.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ %s", (_OF_A_BUILD,))
    count = 0
    for (schema,) in await rows.fetchall():
        build = str(schema).removeprefix(schema_of(""))
        if await take_locks(conn, [build], "build", -1):
            await conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
            for table in ("projection_positions", "dead_letters"):
                await conn.execute(
                    sql.SQL("DELETE FROM {} WHERE build = %s OR starts_with(build, %s)").format(sql.Identifier(table)),
                    (build, f"{build}/"),
                )
            count += 1
        await conn.execute("SELECT pg_advisory_unlock_all()")
    return count


def _key_sql(text: LiteralString, table: sa.Table, build: str) -> sql.Composed:
    return sql.SQL(text).format(
        table=sql.Identifier(schema_of(build), table.name),
        name=sql.Identifier(f"{table.name}_pkey"),
        columns=sql.SQL(", ").join(sql.Identifier(c.name) for c in table.primary_key),
    )


def _ddl(element: CreateTable | CreateIndex) -> bytes:
    return str(element.compile(dialect=_DIALECT)).encode()
