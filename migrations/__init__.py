"""Alembic migrations of the schema `turnlog`, run by code, without an alembic.ini."""
