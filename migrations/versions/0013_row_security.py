"""row-level security by tenant

The policies are made after every upgrade, for each table that has a tenant (migrations/upgrade.py).
"""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    pass


def downgrade() -> None:
    op.execute("""
DO $$ DECLARE
  of_tenant record;
BEGIN
  FOR of_tenant IN SELECT polrelid::regclass AS name FROM pg_policy WHERE polname = 'of_tenant'
    AND polrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'turnlog'::regnamespace)
  LOOP
    EXECUTE 'DROP POLICY of_tenant ON ' || of_tenant.name;
    EXECUTE 'ALTER TABLE ' || of_tenant.name || ' DISABLE ROW LEVEL SECURITY';
  END LOOP;
END $$""")
