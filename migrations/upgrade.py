"""Brings the database to the newest schema. Many processes may do this at once.

There are no downgrades, because the rows of an older schema can be rebuilt from the log.

Alembic and SQLAlchemy take a quarter of a second to load, so only functions that need them import them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from turnlog.events.errors import DatabaseUnavailable
from turnlog.projectors.engine.database import SCHEMA
from turnlog.projectors.engine.row_security import protection

if TYPE_CHECKING:
    import sqlalchemy as sa
    from alembic.config import Config

_LOCK = 0x7475726E


def sqlalchemy_url(database_url: str) -> str:
    """Returns the URL with SQLAlchemy's name for the psycopg 3 driver."""
    scheme, _, rest = database_url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgresql", "postgres") else database_url


def config(connection: "sa.Connection | None" = None) -> "Config":
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent))
    made.attributes["connection"] = connection
    return made


def engine(database_url: str) -> "sa.Engine":
    import sqlalchemy as sa

    return sa.create_engine(sqlalchemy_url(database_url), connect_args={"options": f"-c search_path={SCHEMA},public"})


def upgrade(database_url: str) -> None:
    """Upgrades the schema. Raises DatabaseUnavailable if Postgres cannot be reached or lacks the extension `vector`."""
    import sqlalchemy as sa

    try:
        _migrate(engine(database_url))
    except (sa.exc.DBAPIError, sa.exc.ArgumentError, psycopg.Error, ValueError) as error:  # ValueError: the port
        cause = " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
        raise DatabaseUnavailable(
            f"cannot prepare the database: {cause}. Check DATABASE_URL (its role must be able to create the schema "
            f"{SCHEMA} and the extension vector), or unset it to use the embedded server"
        ) from error


def _migrate(made: "sa.Engine") -> None:
    import sqlalchemy as sa
    from alembic import command

    try:
        with made.connect() as connection:
            connection.execute(sa.text(f"SELECT pg_advisory_lock({_LOCK})"))
            connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
            connection.execute(sa.text("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public"))
            connection.commit()
            command.upgrade(config(connection), "head")
            connection.execute(sa.text(protection()))
            connection.commit()
    finally:
        made.dispose()


def newest_revision() -> str:
    """Returns the newest revision, by the numbered file names."""
    return max(path.name.split("_")[0] for path in (Path(__file__).parent / "versions").glob("[0-9]*_*.py"))


async def is_current(database_url: str) -> bool:
    """Returns whether the schema is the newest. Returns False if the database cannot be reached, because `upgrade` then
    raises the error."""
    try:
        async with await psycopg.AsyncConnection.connect(database_url, connect_timeout=10) as conn:
            rows = await conn.execute(f"SELECT version_num FROM {SCHEMA}.alembic_version".encode())
            return await rows.fetchall() == [(newest_revision(),)]
    except psycopg.Error:
        return False
