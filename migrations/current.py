"""Checks for the newest schema without loading Alembic, so that most commands start sooner."""

from pathlib import Path

import psycopg

from turnlog.projectors.engine.tables import SCHEMA


def newest_revision() -> str:
    """The newest revision, by the numbered file names."""
    return max(path.name.split("_")[0] for path in (Path(__file__).parent / "versions").glob("[0-9]*_*.py"))


async def is_current(database_url: str) -> bool:
    """Returns False also if the database cannot be reached: the upgrade that follows raises the error."""
    try:
        async with await psycopg.AsyncConnection.connect(database_url, connect_timeout=10) as conn:
            rows = await conn.execute(f"SELECT version_num FROM {SCHEMA}.alembic_version".encode())
            return await rows.fetchall() == [(newest_revision(),)]
    except psycopg.Error:
        return False
