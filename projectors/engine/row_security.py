"""Row-level security keeps tenants apart a second time, in addition to the tenant condition in every query.

A connection with the role ROLE sees the rows of the tenant in its setting SETTING, and none without the setting. The
policies do not apply to the owner of the tables, as whom projectors, rebuilds, jobs and the command line connect.
"""

from turnlog.events.errors import TurnlogError
from turnlog.projectors.engine.database import SCHEMA
from turnlog.projectors.engine.writer import Connection

ROLE = "turnlog_api"
SETTING = "turnlog.tenant"
UNREADABLE = ("user_keys", "repeatable_writes")  # tables with a tenant's rows that no request reads
# Tables of sequences and ids without text: positions, and ids of events on the log.
SHARED = ("projection_positions", "event_ids", "event_ids_of_any_thread")

_FIX = (
    f"As an administrator of the database run `CREATE ROLE {ROLE} NOLOGIN NOSUPERUSER NOBYPASSRLS; "
    f"GRANT {ROLE} TO <the user of DATABASE_URL>`"
)


class NoTenantRole(TurnlogError):
    """The role of row-level security is missing, bypasses the policies, or cannot be assumed."""

    code = "no-tenant-role"


_PROTECTED = f"""
DO $$ DECLARE
  found record;
  has_role boolean;
BEGIN
  BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{ROLE}') THEN
      CREATE ROLE {ROLE} NOLOGIN NOSUPERUSER NOBYPASSRLS;
    END IF;
    IF NOT pg_has_role('{ROLE}', 'USAGE') THEN
      GRANT {ROLE} TO CURRENT_USER;
    END IF;
  EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN
    NULL; -- another database's upgrade made it just now, or an administrator has to make it
  END;
  -- An index serves only operators that cannot leak through a policy. These compare text[] without an error that could
  -- show a row; without this a search by words reads all of a tenant's rows.
  IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
    AND NOT (SELECT proleakproof FROM pg_proc WHERE oid = 'pg_catalog.arraycontains'::regproc) THEN
    ALTER FUNCTION pg_catalog.arraycontains(anyarray, anyarray) LEAKPROOF;
    ALTER FUNCTION pg_catalog.arrayoverlap(anyarray, anyarray) LEAKPROOF;
  END IF;
  has_role := EXISTS (SELECT FROM pg_roles WHERE rolname = '{ROLE}');
  IF has_role AND NOT has_schema_privilege('{ROLE}', '{SCHEMA}', 'USAGE') THEN
    GRANT USAGE ON SCHEMA {SCHEMA} TO {ROLE};
  END IF;
  FOR found IN SELECT c.oid::regclass AS name, c.relrowsecurity OR a.attname IS NULL AS protected, c.relname
    FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped
    WHERE c.relnamespace = '%(schema)s'::regnamespace AND c.relkind = 'r'
      AND (a.attname IS NOT NULL OR c.relname = ANY ('{{{",".join(SHARED)}}}'))
  LOOP
    IF NOT found.protected THEN
      EXECUTE 'ALTER TABLE ' || found.name || ' ENABLE ROW LEVEL SECURITY';
      EXECUTE 'CREATE POLICY of_tenant ON ' || found.name
        || ' USING (tenant = (SELECT current_setting(''{SETTING}'', true)))';
    END IF;
    IF has_role AND found.relname <> ALL ('{{{",".join(UNREADABLE)}}}') THEN
      EXECUTE 'GRANT SELECT ON ' || found.name || ' TO {ROLE}';
    END IF;
  END LOOP;
END $$"""

_USABLE = f"""
SELECT NOT r.rolsuper AND NOT r.rolbypassrls AND pg_has_role(r.oid, 'USAGE')
  AND has_table_privilege(r.oid, '{SCHEMA}.messages', 'SELECT')
FROM pg_roles r WHERE r.rolname = '{ROLE}'"""


def protection(schema: str = SCHEMA) -> str:
    """Returns SQL that creates a policy for every table of a schema with a column `tenant`, and lets ROLE read these
    tables except UNREADABLE, and the tables SHARED.

    It creates ROLE if the connection's user is allowed to; without ROLE it creates policies but no grants. It can run
    repeatedly.
    """
    return _PROTECTED % {"schema": schema}


async def make_usable(conn: Connection) -> None:
    """Grants the role its rights if an administrator created it after the upgrade. Raises NoTenantRole."""
    if not await _is_usable(conn):
        await conn.execute(protection().encode())
        if not await _is_usable(conn):
            raise NoTenantRole(f"tenants cannot be kept apart: the role {ROLE} is missing or unsuitable. {_FIX}")


async def _is_usable(conn: Connection) -> bool:
    """Returns whether the role exists, cannot bypass the policies, may read, and can be assumed by the connection's
    user."""
    rows = await conn.execute(_USABLE.encode())
    return await rows.fetchone() == (True,)
