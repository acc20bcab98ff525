"""What is done to users' keys: rotate, destroy, wrap anew, count. Every process that holds a key hears of it."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from psycopg.errors import LockNotAvailable, UniqueViolation
from psycopg.rows import dict_row
from uuid_utils.compat import uuid7

from turnlog.agent.privacy.kek import Keks, WrongKek
from turnlog.agent.privacy.keys import CHANNEL
from turnlog.events.errors import KeyUnavailable, NotFound
from turnlog.projectors.engine.writer import Connection

logger = logging.getLogger("turnlog.privacy")
REWRAP_AT_ONCE, ROTATE_TRIES = 1_000, 20
LOCK_MS, LOCK_AGAIN_S, LOCK_TRIES = 250, 0.25, 4
# Longer than any process takes to hear of a retired key and to publish what it has sealed.
SETTLE_S = 1.0

_RETIRE = """
UPDATE user_keys SET retired_at = now()
WHERE tenant = %s AND user_id = %s AND retired_at IS NULL AND destroyed_at IS NULL"""
_CURRENT = """
SELECT FROM user_keys WHERE tenant = %s AND user_id = %s AND retired_at IS NULL AND destroyed_at IS NULL"""
_DESTROY = """
UPDATE user_keys SET wrapped = NULL, destroyed_at = now(), retired_at = coalesce(retired_at, now())
WHERE key_id = ANY(%s) AND destroyed_at IS NULL"""
_COUNTS = """
SELECT kek_id, count(DISTINCT (tenant, user_id)) AS users,
  count(*) FILTER (WHERE retired_at IS NULL AND destroyed_at IS NULL) AS current,
  count(*) FILTER (WHERE retired_at IS NOT NULL AND destroyed_at IS NULL) AS retired,
  count(*) FILTER (WHERE destroyed_at IS NOT NULL) AS destroyed
FROM user_keys GROUP BY kek_id ORDER BY kek_id"""


@dataclass(frozen=True, slots=True)
class KekUse:
    """How many keys one key-encryption key wraps, or wrapped while they were. known: it is among the given ones."""

    kek_id: str
    users: int
    current: int
    retired: int
    destroyed: int
    known: bool


async def refuse_other_keks(conn: Connection, keks: Keks | None) -> None:
    """Raises WrongKek when keys are wrapped by a key-encryption key that is not given, or by one and none is given."""
    rows = await conn.execute(
        "SELECT kek_id FROM user_keys WHERE wrapped IS NOT NULL AND kek_id <> ALL(%s) LIMIT 1",
        ([] if keks is None else list(keks.by_id),),
    )
    found = await rows.fetchone()
    if found is None:
        return
    given = "and none is given" if keks is None else f"not by {keks.current.id} from {keks.source}"
    raise WrongKek(
        f"the personal data of this database's users is encrypted under key-encryption key {found[0]}, {given}. Set "
        "TURNLOG_KEK to that one; to change it, set TURNLOG_KEK_OLD to it and run `turnlog keys rewrap`. With an "
        "embedded Postgres it is the file `kek` in TURNLOG_HOME"
    )


async def rotate(conn: Connection, keks: Keks, tenant: str, user: str) -> str:
    """A new key seals from now on, the ones before still open; returns its id. conn must not be in a transaction.

    Raises NotFound for a user without a key that seals: unknown, or erased; what they say next gets a new one anyway.
    Raises KeyUnavailable when others change the user's keys all the time.
    """
    for _ in range(ROTATE_TRIES):
        with contextlib.suppress(UniqueViolation):  # another one made a key between our two statements
            return await _rotated(conn, keks, tenant, user)
    raise KeyUnavailable(f"the key of user {user!r} is being changed by others; try again")


async def _rotated(conn: Connection, keks: Keks, tenant: str, user: str) -> str:
    key_id, raw = str(uuid7()), AESGCM.generate_key(256)
    async with conn.transaction():
        retired = (await conn.execute(_RETIRE, (tenant, user))).rowcount
        if not retired and not await _has_key(conn, tenant, user):
            raise NotFound(
                f"user {user!r} of tenant {tenant!r} has no key, so there is nothing to rotate; check the spelling, or "
                "the user is new or was erased: what they say next gets a key of its own"
            )
        await conn.execute(
            "INSERT INTO user_keys (key_id, tenant, user_id, wrapped, kek_id) VALUES (%s, %s, %s, %s, %s)",
            (key_id, tenant, user, keks.current.wrap(raw, key_id, tenant, user), keks.current.id),
        )
        await _tell(conn, tenant, user)
    return key_id


async def _has_key(conn: Connection, tenant: str, user: str) -> bool:
    """Whether one seals now: another rotation may have put it in place after our statement began."""
    rows = await conn.execute(_CURRENT, (tenant, user))
    return await rows.fetchone() is not None


async def destroy(conn: Connection, tenant: str, user: str) -> int:
    """Destroys every key that the user has now, for good; returns how many. conn must not be in a transaction.

    First they are retired, and after SETTLE_S, when nobody seals with them any more, destroyed: what is said
    meanwhile gets a new key, and stays. Their bytes leave the table's file too; WAL and backups keep theirs.
    """
    async with conn.transaction():
        await conn.execute(_RETIRE, (tenant, user))
        await _tell(conn, tenant, user)
        rows = await conn.execute(
            "SELECT key_id FROM user_keys WHERE tenant = %s AND user_id = %s AND retired_at IS NOT NULL "
            "AND destroyed_at IS NULL",
            (tenant, user),
        )
        ids = [key_id for (key_id,) in await rows.fetchall()]
    if not ids:
        return 0
    await asyncio.sleep(SETTLE_S)
    async with conn.transaction():
        destroyed = (await conn.execute(_DESTROY, (ids,))).rowcount
        await _tell(conn, tenant, user)
    await _compact(conn)
    return destroyed


async def rewrap(conn: Connection, keks: Keks) -> int:
    """Wraps every key that an older key-encryption key wraps by the current one; returns how many.

    Raises KeyUnavailable at a key whose key-encryption key is not given; what was done before it stays.
    """
    done = 0
    while part := await _rewrap_some(conn, keks):
        done += part
    if done:
        await _compact(conn)
    return done


async def uses(conn: Connection, keks: Keks | None) -> list[KekUse]:
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(_COUNTS)
    known = {} if keks is None else keks.by_id
    return [KekUse(**row, known=row["kek_id"] in known) for row in await cursor.fetchall()]


async def _rewrap_some(conn: Connection, keks: Keks) -> int:
    async with conn.transaction():
        rows = await conn.execute(
            "SELECT key_id::text, tenant, user_id, wrapped, kek_id FROM user_keys "
            "WHERE wrapped IS NOT NULL AND kek_id <> %s LIMIT %s FOR UPDATE",
            (keks.current.id, REWRAP_AT_ONCE),
        )
        found = await rows.fetchall()
        await conn.cursor().executemany(
            "UPDATE user_keys SET wrapped = %s, kek_id = %s WHERE key_id = %s::uuid", _rewrapped(found, keks)
        )
    return len(found)


def _rewrapped(rows: Sequence[Any], keks: Keks) -> list[tuple[bytes, str, str]]:
    made = []
    for key_id, tenant, user, wrapped, kek_id in rows:
        if (kek := keks.by_id.get(kek_id)) is None:
            raise KeyUnavailable(f"key {key_id} is wrapped by {kek_id}, which is not given; set TURNLOG_KEK_OLD to it")
        raw = kek.unwrap(wrapped, key_id, tenant, user)
        made.append((keks.current.wrap(raw, key_id, tenant, user), keks.current.id, key_id))
    return made


async def _compact(conn: Connection) -> None:
    """Takes dead rows out of the table's file, unless somebody reads the table for long, as pg_dump does.

    Waiting for them would make every look-up of a key wait behind us.
    """
    await conn.execute(f"SET lock_timeout = '{LOCK_MS}ms'")
    try:
        for _ in range(LOCK_TRIES):
            with contextlib.suppress(LockNotAvailable):
                await conn.execute("VACUUM (FULL) user_keys")
                return
            await asyncio.sleep(LOCK_AGAIN_S)
        logger.warning(
            "user_keys is in use, by a backup perhaps: rows of keys that are of no more use stay in its file, wrapped, "
            "until VACUUM (FULL) user_keys, which the next erasure does too"
        )
    finally:
        await conn.execute("RESET lock_timeout")


async def _tell(conn: Connection, tenant: str, user: str) -> None:
    await conn.execute("SELECT pg_notify(%s, %s)", (CHANNEL, json.dumps([tenant, user])))
