"""Alembic migrations of the schema `turnlog`, run by code: nobody needs an alembic.ini."""
