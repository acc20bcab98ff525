"""Provides migrated, empty databases. Emptying a database takes a quarter of the CPU time of creating and dropping
it."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
from helpers.servers import database_at, execute

from turnlog.projectors.engine.database import SCHEMA

Connection = psycopg.AsyncConnection[tuple[str | None, ...]]
OURS = f"(SELECT oid FROM pg_class WHERE relnamespace = '{SCHEMA}'::regnamespace)"
# The catalogues that show definitions, with the columns that change even if no definition changes.
CATALOGUES = {
    f"pg_class WHERE oid IN {OURS}": "oid, relname, relowner, relrowsecurity, relforcerowsecurity, relacl, reloptions",
    "pg_class": "oid, relnamespace",
    f"pg_attribute WHERE attrelid IN {OURS}": "attrelid, attnum, xmin",
    f"pg_index WHERE indrelid IN {OURS}": "indexrelid, xmin",
    f"pg_constraint WHERE conrelid IN {OURS}": "oid, xmin",
    "pg_trigger": "oid, xmin",
    "pg_policy": "oid, xmin",
    "pg_namespace": "oid, xmin",
    "pg_proc WHERE oid >= 16384": "oid, xmin",
    f"pg_statistic WHERE starelid IN {OURS}": "starelid",
    "pg_db_role_setting WHERE setdatabase <> 0": "setdatabase",
}
DEFINED = ", ".join(
    f"(SELECT (count(*), sum(hashtext(({columns})::text)))::text FROM {catalogue})"
    for catalogue, columns in CATALOGUES.items()
)
WRITTEN = f"""
SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
WHERE oid IN {OURS} AND relkind = 'r' AND relname <> 'alembic_version' AND pg_relation_size(oid) > 0"""
END_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()"""


@dataclass(frozen=True, slots=True)
class Used:
    url: str
    conn: Connection
    defined: tuple[str | None, ...]  # the definitions that the migrations made

    async def emptied(self) -> bool:
        """Ends all other sessions and removes all rows; returns False if the test changed more than rows."""
        try:
            await self.conn.execute(END_OTHERS)
            written, *defined = await _row(self.conn, f"SELECT ({WRITTEN}), {DEFINED}")
            if tuple(defined) != self.defined:
                return False
            if written:
                await self.conn.execute(f"TRUNCATE {written} RESTART IDENTITY CASCADE".encode())
        except psycopg.Error:  # the test has ended every session or the server
            return False
        return True


class Databases:
    """The databases of a test run. url: another database of the same server. template: the name of the database to
    copy."""

    def __init__(self, url: str, template: str) -> None:
        self._url, self._template = url, template
        self._free: list[Used] = []

    @asynccontextmanager
    async def empty(self) -> AsyncIterator[str]:
        """Yields the URL of an empty database that no other test uses."""
        used = self._free.pop() if self._free else await self._made()
        try:
            yield used.url
        finally:
            if await used.emptied():
                self._free.append(used)
            else:
                await self._drop(used)

    async def close(self) -> None:
        for used in self._free:
            await self._drop(used)

    async def _made(self) -> Used:
        url = database_at(self._url, name := f"turnlog_test_{uuid.uuid4().hex[:12]}")
        await execute(self._url, f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY")
        conn = await psycopg.AsyncConnection.connect(url, autocommit=True)
        return Used(url, conn, await _row(conn, f"SELECT {DEFINED}"))

    async def _drop(self, used: Used) -> None:
        await used.conn.close()
        await execute(self._url, f"DROP DATABASE {urlsplit(used.url).path[1:]} WITH (FORCE)")


async def _row(conn: Connection, query: str) -> tuple[str | None, ...]:
    row = await (await conn.execute(query.encode())).fetchone()
    assert row is not None
    return row
