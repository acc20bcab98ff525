"""Checks the key-encryption key at start, and synchronises the keys of stream and table.

Each copy can restore the other: an empty database gets its keys from the stream, and a stream that is new, lost or
older gets them from the table. Keys that were destroyed in one copy are destroyed in both.
"""

import json
from collections.abc import Sequence

from turnlog.agent.privacy.keys.kek import FILE, Keks, WrongKek, keks_of, make_kek
from turnlog.agent.privacy.keys.key_stream import PLACE, KeyRecord, KeyStream, kek_in_use, taking_over
from turnlog.agent.privacy.keys.user_keys import CHANNEL
from turnlog.agent.settings import Settings
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection

AT_ONCE = 1_000
_UNPLACED = """
SELECT key_id::text, tenant, user_id, wrapped, kek_id FROM user_keys WHERE seq IS NULL LIMIT %s FOR UPDATE"""
_DESTROYED = "SELECT key_id::text, tenant, user_id FROM user_keys WHERE key_id = ANY(%s) AND destroyed_at IS NOT NULL"


async def checked_keks(settings: Settings, conn: Connection, log: Log) -> Keks | None:
    """Returns the key-encryption keys, after synchronising users' keys in stream and table; None if nothing is
    encrypted.

    The file is created for a new turnlog, but never for one that already has keys. Raises InvalidKek, WrongKek,
    KeyUnavailable, StreamDrift.
    """
    keks, needed = keks_of(settings), await _needed(conn, log)
    if keks is None and settings.database_url is None:
        keks = keks_of(settings) if needed else make_kek(settings)  # another process may have just created it
        if keks is None:
            ids = ", ".join(sorted(needed))
            raise WrongKek(
                f"the file {settings.home / FILE} is missing: the key-encryption key {ids}, under which the personal "
                "data of this turnlog's users is encrypted. No new one was made, for it would open nothing. Copy the "
                "file back from a backup, or set TURNLOG_KEK to its content. If there is no copy, what "
                "users said in this log is lost: begin an empty one with another TURNLOG_HOME"
            )
    if missing := needed - set(keks.by_id if keks else ()):
        detail = "and none is given" if keks is None else f"not by {keks.current.id} from {keks.source}"
        raise WrongKek(
            f"the personal data of this turnlog's users is encrypted under key-encryption key {missing.pop()}, {detail}"
            ". Set TURNLOG_KEK to that one; to change it, set TURNLOG_KEK_OLD to it and run `turnlog encryption-key "
            "rewrap`. With an embedded Postgres it is the file `kek` in TURNLOG_HOME"
        )
    if keks is not None:
        stream = KeyStream(log.nc, keks)
        await stream.create(settings.stream)
        await _bring_in_step(conn, stream)
    return keks


async def complete_table(conn: Connection, stream: KeyStream) -> None:
    """Copies keys that the table lacks from the stream to the table."""
    await _take_over(conn, stream, 0, await stream.head())


async def tell(conn: Connection, tenant: str, user: str) -> None:
    """Notifies every process that has loaded the user's keys to fetch them again."""
    await conn.execute("SELECT pg_notify(%s, %s)", (CHANNEL, json.dumps([tenant, user])))


async def _needed(conn: Connection, log: Log) -> set[str]:
    """Returns the ids of the key-encryption keys that wrap keys of users."""
    rows = await conn.execute("SELECT DISTINCT kek_id FROM user_keys WHERE wrapped IS NOT NULL")
    in_use = await kek_in_use(log.nc)
    return {kek_id for (kek_id,) in await rows.fetchall()} | ({in_use} if in_use else set())


async def _bring_in_step(conn: Connection, stream: KeyStream) -> None:
    rows = await conn.execute("SELECT coalesce(max(seq), 0), count(*) > count(seq) FROM user_keys")
    [(newest, is_ahead)] = await rows.fetchall()
    head = await stream.head()
    if newest > head:  # it is a different stream, or one restored from an older copy
        await conn.execute("UPDATE user_keys SET seq = NULL WHERE seq > %s", (head,))
    if is_ahead or newest > head:
        await _copy(conn, stream)
    await _take_over(conn, stream, newest, head)


async def _copy(conn: Connection, stream: KeyStream) -> None:
    """Copies keys that only the table has to the stream, such as keys that are older than the stream."""
    while True:
        async with conn.transaction():
            records = [KeyRecord(*row) for row in await (await conn.execute(_UNPLACED, (AT_ONCE,))).fetchall()]
            await conn.execute(PLACE, ([record.id for record in records], await stream.put(records)))
        await stream.overwrite_issued([record.id for record in records if record.wrapped is None])
        if len(records) < AT_ONCE:
            return


async def _take_over(conn: Connection, stream: KeyStream, after: int, through: int) -> None:
    part: list[KeyRecord] = []
    async for record in stream.since(after, through):
        part.append(record)
        if len(part) == AT_ONCE:
            await _take(conn, stream, part)
            part = []
    await _take(conn, stream, part)


async def _take(conn: Connection, stream: KeyStream, records: Sequence[KeyRecord]) -> None:
    if not records:
        return
    await conn.cursor().executemany(*taking_over(records))
    rows = await (await conn.execute(_DESTROYED, ([record.id for record in records],))).fetchall()
    await stream.overwrite_issued([key_id for key_id, _, _ in rows])
    for tenant, user in {(tenant, user) for _, tenant, user in rows}:
        await tell(conn, tenant, user)
