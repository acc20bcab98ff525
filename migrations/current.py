"""Whether the schema is the newest, asked without loading Alembic: for most commands it is, and they start sooner."""

from pathlib import Path

import psycopg

from turnlog.projectors.tables import SCHEMA


def newest_revision() -> str:
    """Revisions are numbered, and their files are named by them."""
    return max(path.name.split("_")[0] for path in (Path(__file__).parent / "versions").glob("[0-9]*_*.py"))


async def is_current(database_url: str) -> bool:
    """False also when the database cannot be asked: the upgrade that follows says why."""
    try:
        async with await psycopg.AsyncConnection.connect(database_url, connect_timeout=10) as conn:
            rows = await conn.execute(f"SELECT version_num FROM {SCHEMA}.alembic_version".encode())
            return await rows.fetchall() == [(newest_revision(),)]
    except psycopg.Error:
        return False
