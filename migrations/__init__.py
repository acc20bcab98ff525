"""Alembic migrations of the schema `turnlog`; upgrade.py runs them without an alembic.ini."""
