"""Rotates, destroys, re-wraps and counts users' keys. Every process that has loaded a key is notified.

Every change goes to the stream first, then to the table; changes missing in the table are copied from the stream at the
next start.
"""

import asyncio
import contextlib
import logging
from base64 import b64encode
from dataclasses import dataclass

from psycopg.errors import LockNotAvailable, UniqueViolation
from psycopg.rows import dict_row

from turnlog.agent.privacy.keys.kek import Keks
from turnlog.agent.privacy.keys.key_copies import complete_table, tell
from turnlog.agent.privacy.keys.key_stream import KeyRecord, KeyStream, new_record
from turnlog.events.errors import KeyUnavailable, NotFound
from turnlog.projectors.engine.writer import Connection

logger = logging.getLogger("turnlog.privacy")
REWRAP_AT_ONCE, ROTATE_TRIES = 1_000, 20
LOCK_MS, LOCK_AGAIN_S, LOCK_TRIES = 250, 0.25, 4
# Longer than any process needs to be notified of a retired key and to publish events that it sealed with this key.
SETTLE_S = 1.0

_RETIRE = """
UPDATE user_keys SET retired_at = now()
WHERE tenant = %s AND user_id = %s AND retired_at IS NULL AND destroyed_at IS NULL"""
_CURRENT = """
SELECT FROM user_keys WHERE tenant = %s AND user_id = %s AND retired_at IS NULL AND destroyed_at IS NULL"""
_RETIRED = """
SELECT key_id::text, tenant, user_id, NULL, kek_id FROM user_keys
WHERE tenant = %s AND user_id = %s AND retired_at IS NOT NULL AND destroyed_at IS NULL"""
_DESTROY = """
UPDATE user_keys k SET wrapped = NULL, destroyed_at = now(), seq = placed.seq
FROM unnest(%s::uuid[], %s::bigint[]) AS placed (key_id, seq)
WHERE k.key_id = placed.key_id AND destroyed_at IS NULL"""
_COUNTS = """
SELECT kek_id, count(DISTINCT (tenant, user_id)) FILTER (WHERE user_id <> '') AS users,
  count(*) FILTER (WHERE retired_at IS NULL AND destroyed_at IS NULL) AS current,
  count(*) FILTER (WHERE retired_at IS NOT NULL AND destroyed_at IS NULL) AS retired,
  count(*) FILTER (WHERE destroyed_at IS NOT NULL) AS destroyed
FROM user_keys GROUP BY kek_id ORDER BY kek_id"""


@dataclass(frozen=True, slots=True)
class KekUse:
    """How many keys a key-encryption key wraps, including destroyed ones. known: whether the key-encryption key is
    configured."""

    kek_id: str
    users: int
    current: int
    retired: int
    destroyed: int
    known: bool


async def rotate(conn: Connection, stream: KeyStream, tenant: str, user: str) -> str:
    """Makes a new key, which seals the user's events from now on, and returns its id. Earlier keys still open the
    events that they sealed.

    conn must not be in a transaction. Raises NotFound if the user has no current key (the user is unknown or erased),
    KeyUnavailable if NATS does not answer or other processes keep changing the user's keys.
    """
    for _ in range(ROTATE_TRIES):
        with contextlib.suppress(UniqueViolation):  # another process made a key between our two statements
            return await _rotated(conn, stream, tenant, user)
    raise KeyUnavailable(f"the key of user {user!r} is being changed by others; try again")


async def _rotated(conn: Connection, stream: KeyStream, tenant: str, user: str) -> str:
    made = new_record(stream.keks, tenant, user)
    async with conn.transaction():
        retired = (await conn.execute(_RETIRE, (tenant, user))).rowcount
        # Another rotation may have made a key after our statement began.
        if not retired and await (await conn.execute(_CURRENT, (tenant, user))).fetchone() is None:
            raise NotFound(
                f"user {user!r} of tenant {tenant!r} has no key, so there is nothing to rotate; check the spelling, or "
                "the user is new or was erased: what they say next gets a key of its own"
            )
        await conn.execute(
            "INSERT INTO user_keys (key_id, tenant, user_id, wrapped, kek_id) VALUES (%s, %s, %s, %s, %s)", made[:5]
        )
        [seq] = await stream.put([made])
        await conn.execute("UPDATE user_keys SET seq = %s WHERE key_id = %s", (seq, made.id))
        await tell(conn, tenant, user)
    return made.id


async def destroy(conn: Connection, stream: KeyStream, tenant: str, user: str) -> int:
    """Destroys all present keys of the user; returns their number. conn must not be in a transaction.

    The keys are first retired. After SETTLE_S, when no process seals with them, they are destroyed. Turns that are said
    meanwhile get a new key and stay readable. The bytes of the keys are removed from the files of the stream and the
    table, but not from the WAL and from backups. Raises KeyUnavailable if NATS does not answer; the call can then be
    repeated.
    """
    async with conn.transaction():
        await conn.execute(_RETIRE, (tenant, user))
        await tell(conn, tenant, user)
        rows = await conn.execute(_RETIRED, (tenant, user))
        records = [KeyRecord(*row) for row in await rows.fetchall()]
    if not records:
        return 0
    await asyncio.sleep(SETTLE_S)
    seqs = await stream.destroy(records)
    async with conn.transaction():
        destroyed = (await conn.execute(_DESTROY, ([record.id for record in records], seqs))).rowcount
        await tell(conn, tenant, user)
    await _compact(conn)
    return destroyed


async def wrapped_forms(conn: Connection, tenant: str, user: str) -> list[str]:
    """Returns the user's keys in their stored form, so that a scan can search for them after they were destroyed."""
    rows = await conn.execute(
        "SELECT wrapped FROM user_keys WHERE tenant = %s AND user_id = %s AND wrapped IS NOT NULL", (tenant, user)
    )
    return [b64encode(wrapped).decode() for (wrapped,) in await rows.fetchall()]


async def rewrap(conn: Connection, stream: KeyStream) -> int:
    """Wraps the keys of older key-encryption keys with the current one instead; returns the number of keys.

    Raises KeyUnavailable at a key whose key-encryption key is not configured, and if NATS does not answer; earlier
    batches of keys stay wrapped with the current one.
    """
    await complete_table(conn, stream)
    done = 0
    while part := await _rewrap_some(conn, stream):
        done += sum(record.wrapped is not None for record in part)
    head = await stream.head()
    old = [record.seq async for record in stream.since(0, head) if record.kek_id != stream.keks.current.id]
    await stream.overwrite(old)
    await stream.cut_raft_logs()
    await stream.note_kek()
    if done:
        await _compact(conn)
    return done


async def uses(conn: Connection, keks: Keks | None) -> list[KekUse]:
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(_COUNTS)
    known = {} if keks is None else keks.by_id
    return [KekUse(**row, known=row["kek_id"] in known) for row in await cursor.fetchall()]


async def _rewrap_some(conn: Connection, stream: KeyStream) -> list[KeyRecord]:
    async with conn.transaction():
        rows = await conn.execute(
            "SELECT key_id::text, tenant, user_id, wrapped, kek_id FROM user_keys "
            "WHERE kek_id <> %s LIMIT %s FOR UPDATE",
            (stream.keks.current.id, REWRAP_AT_ONCE),
        )
        made = [_rewrapped(KeyRecord(*row), stream.keks) for row in await rows.fetchall()]
        seqs = await stream.put(made)
        await conn.cursor().executemany(
            "UPDATE user_keys SET wrapped = %s, kek_id = %s, seq = %s WHERE key_id = %s::uuid",
            [(record.wrapped, record.kek_id, seq, record.id) for record, seq in zip(made, seqs, strict=True)],
        )
    return made


def _rewrapped(row: KeyRecord, keks: Keks) -> KeyRecord:
    if row.wrapped is None:
        return row._replace(kek_id=keks.current.id)
    raw = keks.unwrap(row.wrapped, row.kek_id, row.id, row.tenant, row.user)
    wrapped = keks.current.wrap(raw, row.id, row.tenant, row.user)
    return row._replace(wrapped=wrapped, kek_id=keks.current.id)


async def _compact(conn: Connection) -> None:
    """Removes dead rows from the table's file, unless another session, such as pg_dump, locks the table for long.

    It does not wait for such a session, because every look-up of a key would have to wait too.
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
