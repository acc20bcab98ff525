"""The migrations make exactly the schema that the code declares, also if they run repeatedly or concurrently."""

import asyncio
import uuid

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from helpers.servers import database_at, execute, rows

from turnlog.agent.tables import metadata
from turnlog.events.errors import DatabaseUnavailable
from turnlog.migrations.upgrade import engine, upgrade
from turnlog.projectors.engine.database import SCHEMA
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models import registry

COLUMNS = "SELECT column_name::text FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "


def differences(database_url: str) -> list[object]:
    assert registry.PROJECTIONS  # importing the registry declares every table
    made = engine(database_url)
    try:
        with made.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            return list(compare_metadata(context, metadata))
    finally:
        made.dispose()


async def test_the_migrated_schema_is_the_declared_one(database_url: str) -> None:
    assert await asyncio.to_thread(differences, database_url) == []


async def test_columns_are_in_the_declared_order_so_that_rows_compare_as_text(db: Connection) -> None:
    for table in metadata.tables.values():
        stored = await rows(db, COLUMNS + "ORDER BY ordinal_position", SCHEMA, table.name)
        assert [name for (name,) in stored] == [column.name for column in table.columns]


async def test_upgrading_again_changes_nothing(database_url: str, db: Connection) -> None:
    await db.execute("INSERT INTO memory_tagged (tenant, thread_id, through_seq) VALUES ('a', 'b', 1)")
    await asyncio.to_thread(upgrade, database_url)
    assert await rows(db, "SELECT through_seq FROM memory_tagged") == [(1,)]


async def test_many_processes_may_upgrade_an_empty_database_at_once(database_url: str) -> None:
    name = f"turnlog_empty_{uuid.uuid4().hex[:12]}"
    await execute(database_url, f"CREATE DATABASE {name}")
    empty = database_at(database_url, name)
    try:
        await asyncio.gather(*(asyncio.to_thread(upgrade, empty) for _ in range(4)))
        assert await asyncio.to_thread(differences, empty) == []
    finally:
        await execute(database_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    "url", ["postgresql://nobody:s3cret@127.0.0.1:1/none", "postgresql://u:s3cret@h:port/", "s3cret"]
)
def test_a_wrong_url_is_reported_in_plain_words_and_without_the_password(url: str) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"(?s)cannot prepare the database.*DATABASE_URL") as caught:
        upgrade(url)
    assert "s3cret" not in str(caught.value)
