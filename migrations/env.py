"""Alembic's entry point: runs the migrations on the connection that upgrade.py opened."""

from alembic import context

from turnlog.agent.tables import metadata
from turnlog.projectors.models import registry

assert registry.PROJECTIONS  # importing the registry declares every table

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    compare_type=True,
    compare_server_default=False,
)
with context.begin_transaction():
    context.run_migrations()
