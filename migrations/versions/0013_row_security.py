"""Introduces row-level security by tenant.

migrations/upgrade.py creates the policies after every upgrade, for each table that has a tenant.
"""

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    pass
