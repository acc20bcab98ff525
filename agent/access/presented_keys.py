"""Makes and recognises API keys `tl_<id>_<secret>`, and records their use.

A key's row contains an HMAC of its secret and its rights. So the rows and the log alone are not enough to use a key,
and somebody who can publish events can neither create a key nor change its rights.
"""

import hmac
import json
import re
import secrets
from datetime import UTC, datetime
from typing import Literal

from turnlog.agent.access.identity import ROLES, Identity, TokenExpired, Unauthenticated
from turnlog.agent.runtime import Pool
from turnlog.events.subjects import access_thread

PREFIX = "tl_"
_KEY = re.compile(r"tl_([0-9a-f]{16})_([A-Za-z0-9_-]{43})\Z")
_ROWS = """
SELECT k.tenant, k.thread_id, k.user_id, k.role, k.scopes, k.expires_at, k.digest, k.revoked_at,
  coalesce(u.used_at < now() - interval '1 minute', true)
FROM api_keys k LEFT JOIN api_key_uses u ON u.tenant = k.tenant AND u.key_id = k.id WHERE k.id = %s"""
_VALID = """
SELECT count(*) > 0 AND bool_and(revoked_at IS NULL) FROM api_keys WHERE tenant = %s AND id = %s"""
_USED = """
INSERT INTO api_key_uses AS u (tenant, key_id, used_at) VALUES (%s, %s, now())
ON CONFLICT (tenant, key_id) DO UPDATE SET used_at = excluded.used_at
WHERE u.used_at < excluded.used_at - interval '1 minute'"""
_SPEND = """
UPDATE api_key_uses SET refreshes = refreshes + 1, refreshed_at = now()
WHERE tenant = %s AND key_id = %s AND refreshes = %s"""
_IS_RECENT = """
SELECT refreshed_at > now() - interval '1 minute' FROM api_key_uses WHERE tenant = %s AND key_id = %s"""


def new_key() -> tuple[str, str]:
    """Returns the id and the complete text of a new key."""
    key_id = secrets.token_hex(8)
    return key_id, f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"


def digest_of(key: str, grant: Identity, pepper: bytes) -> str:
    """Returns the HMAC-SHA256 of an API key and its rights, as 64 hexadecimal digits. grant: tenant, user, role, scopes
    and expiry of the key."""
    until = grant.expires_at and int(grant.expires_at.timestamp())
    said = [key, grant.tenant, grant.user, grant.role, sorted(grant.scopes), until]
    return hmac.digest(pepper, json.dumps(said).encode(), "sha256").hex()


async def identified(pool: Pool, key: str, pepper: bytes) -> Identity:
    """Returns the identity of the key. Its row is read each time, so that a revoked key is refused as soon as its row
    says so.

    Raises Unauthenticated, TokenExpired.
    """
    parts = _KEY.match(key)
    if parts is None:
        raise Unauthenticated(f"the API key is malformed; one is {PREFIX}<id>_<secret>")
    async with pool.connection() as conn:
        for tenant, thread, user, role, scopes, expires_at, digest, revoked_at, is_due in await (
            await conn.execute(_ROWS, (parts[1],))
        ).fetchall():
            identity = Identity(tenant, user, role, frozenset(scopes), parts[1], expires_at)
            if thread != access_thread(user) or role not in ROLES:
                continue
            if not hmac.compare_digest(digest, digest_of(key, identity, pepper)):
                continue
            if revoked_at is not None:
                raise Unauthenticated(f"API key {parts[1]} was revoked")
            if expires_at is not None and expires_at <= datetime.now(UTC):
                raise TokenExpired(f"API key {parts[1]} has expired; make a new one")
            if is_due:
                await conn.execute(_USED, (tenant, parts[1]))
            return identity
    raise Unauthenticated("there is no such API key")


async def is_revoked(pool: Pool, tenant: str, key_id: str) -> bool:
    """Returns whether the key was revoked, or erased with its user."""
    async with pool.connection() as conn:
        row = await (await conn.execute(_VALID, (tenant, key_id))).fetchone()
    return row is None or not row[0]


async def spend_refresh(pool: Pool, key: Identity, used: int) -> Literal["spent", "just spent", "replayed"]:
    """Counts a refresh of a sign-in, which is stored as an API key. used: the number of refreshes when the refresh
    token was issued. Only the newest token can be spent, and only by one of two simultaneous requests. "just spent"
    means that the last refresh was less than a minute ago, so this may be a client's retry."""
    async with pool.connection() as conn:
        row_key = (key.tenant, key.key_id)
        if (await conn.execute(_SPEND, (*row_key, used))).rowcount == 1:
            return "spent"
        row = await (await conn.execute(_IS_RECENT, row_key)).fetchone()
        return "just spent" if row and row[0] else "replayed"
