"""row-level security by tenant

The policies are made after every upgrade, for each table that has a tenant (migrations/upgrade.py).
"""

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    pass
