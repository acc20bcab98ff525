"""Users' keys, held by a process for sealing and opening what is in the log (M9).

A key is looked up once and then held: the log goes on while Postgres is away. Other processes send a NOTIFY for keys
that they retire or destroy; a process that missed one, because Postgres was away, compares all its keys with the table.
The table is read first, and is a copy of the stream of keys: a key is on the stream before anything is sealed with it,
so a key that is in neither was never issued.
"""

import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.agent.privacy.kek import Keks
from turnlog.agent.privacy.key_stream import PLACE, KeyRecord, KeyStream, new_record, taking_over
from turnlog.events.append import MAX_BATCH
from turnlog.events.errors import DatabaseUnavailable, InvalidEvent, KeyUnavailable, LogUnavailable, cause
from turnlog.events.heartbeats import ROUND_S, Heartbeat, Heartbeats
from turnlog.events.log import connect_nats
from turnlog.events.sealing import UserKey
from turnlog.events.subjects import KEYS_STREAM
from turnlog.projectors.engine.database import connect, session_options

CONNECT_S, ANSWER_MS = 2, 3_000
# The server's own limit comes first; a server that hangs keeps none.
HANGS_S, STREAM_S = 4.0, 5.0
# For so long after a failure no call waits for a server that is away.
AWAY_S = 1.0
T = TypeVar("T")
Connection = psycopg.Connection[Any]

Owner = tuple[str, str]  # (tenant, user)

_KEYS = """
SELECT key_id::text, tenant, user_id, wrapped, kek_id, retired_at IS NULL AND destroyed_at IS NULL FROM user_keys
WHERE (tenant, user_id) IN (
  SELECT * FROM unnest(%(tenants)s::text[], %(users)s::text[])
  UNION SELECT tenant, user_id FROM user_keys WHERE key_id = ANY(%(ids)s))
ORDER BY created_at"""
_MAKE = """
INSERT INTO user_keys (key_id, tenant, user_id, wrapped, kek_id)
SELECT * FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::bytea[], %s::text[])
ON CONFLICT (tenant, user_id) WHERE retired_at IS NULL AND destroyed_at IS NULL DO NOTHING
RETURNING key_id::text"""


class KeyRow(NamedTuple):
    """A row of user_keys. wrapped: None for a destroyed key."""

    id: str
    tenant: str
    user: str
    wrapped: bytes | None
    kek_id: str
    is_current: bool


@dataclass(slots=True)
class KeysOfUser:
    """keys: id → key, None for a destroyed one. current: what seals now."""

    current: UserKey | None = None
    keys: dict[str, UserKey | None] = field(default_factory=dict)


class KeyTable:
    """All methods raise KeyUnavailable when Postgres does not answer, or a KEK that is needed is not given."""

    def __init__(self, nats_url: str, database_url: str, keks: Keks) -> None:
        self._nats_url, self._url, self._keks = nats_url, database_url, keks
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._away_until = 0.0

    def rows(self, owners: Collection[Owner], key_ids: Collection[UUID] = ()) -> dict[Owner, list[KeyRow]]:
        """All keys of these users, and of whoever owns one of these keys; each user's oldest first. One query."""
        asked = {"tenants": [t for t, _ in owners], "users": [u for _, u in owners], "ids": list(key_ids)}
        found: dict[Owner, list[KeyRow]] = {}
        for values in self._asked(lambda conn: conn.execute(_KEYS, asked).fetchall(), f"the keys of {_named(owners)}"):
            row = KeyRow(*values)
            found.setdefault((row.tenant, row.user), []).append(row)
        return found

    def opened(self, rows: Iterable[KeyRow]) -> KeysOfUser:
        """The keys of one user, ready for use."""
        found = KeysOfUser()
        for row in rows:
            key = None
            if row.wrapped is not None:
                raw = self._keks.unwrap(row.wrapped, row.kek_id, row.id, row.tenant, row.user)
                key = UserKey(row.id, AESGCM(raw))
            found.keys[row.id] = key
            found.current = key if row.is_current else found.current
        return found

    def make(self, owners: Collection[Owner]) -> None:
        """First keys, except for a user who gets one from another process at the same time."""
        named = sorted(owners)  # or two processes could deadlock
        for start in range(0, len(named), MAX_BATCH):
            part = [new_record(self._keks, tenant, user) for tenant, user in named[start : start + MAX_BATCH]]
            self._asked(functools.partial(self._issue, part), f"keys for {_named(owners)}", HANGS_S + STREAM_S)

    def _issue(self, made: Sequence[KeyRecord], conn: Connection) -> None:
        """The stream acknowledges a key before anybody sees it in the table: what is in use survives Postgres."""
        columns = [[one[at] for one in made] for at in range(5)]
        with conn.transaction():
            won = {key_id for (key_id,) in conn.execute(_MAKE, columns).fetchall()}
            if mine := [one for one in made if one.id in won]:
                seqs = self._on_stream(lambda stream: stream.put(mine))
                conn.execute(PLACE, ([one.id for one in mine], seqs))

    def take_over(self, key_ids: Collection[str]) -> bool:
        """Puts those of the keys into the table that the stream has; False if there is none."""
        found = self._on_stream(lambda stream: stream.of_keys(key_ids))
        if found:
            self._asked(lambda conn: conn.cursor().executemany(*taking_over(found)), "keys back")
        return bool(found)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _on_stream(self, work: Callable[[KeyStream], Coroutine[Any, Any, T]]) -> T:
        """Waits for NATS in a thread and on a connection of its own: the caller's may be that of the event loop."""

        async def asked() -> T:
            async with asyncio.timeout(STREAM_S):
                nc = await connect_nats(self._nats_url, "turnlog-keys", timeout_s=STREAM_S)
                try:
                    return await work(KeyStream(nc, self._keks))
                finally:
                    await nc.close()

        try:
            with ThreadPoolExecutor(1, "turnlog-keys") as thread:
                return thread.submit(asyncio.run, asked()).result()
        except (LogUnavailable, TimeoutError) as error:
            raise KeyUnavailable(f"cannot reach the stream of users' keys: {cause(error)}") from error

    def _asked(self, ask: Callable[[Connection], T], what: str, within_s: float = HANGS_S) -> T:
        """Asks Postgres, once more on a new connection when the old one turns out to be dead."""
        with self._lock:
            if time.monotonic() < self._away_until:
                raise KeyUnavailable(f"cannot get {what}: Postgres does not answer; it is tried again soon")
            try:
                return self._ask_twice(ask, within_s)
            except psycopg.Error as error:
                self._disconnect()
                self._away_until = time.monotonic() + AWAY_S
                cause = " ".join(str(error).split())
                raise KeyUnavailable(
                    f"cannot get {what}: Postgres does not answer ({cause}). Nothing was stored; users seen before go "
                    "on, others can when it is back. Check DATABASE_URL"
                ) from error

    def _ask_twice(self, ask: Callable[[Connection], T], within_s: float) -> T:
        if self._conn is not None:
            try:
                return _in_time(ask, self._conn, within_s)
            except psycopg.Error:
                self._disconnect()
        self._conn = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            tcp_user_timeout=ANSWER_MS,
            options=f"{session_options()} -c statement_timeout={ANSWER_MS}",
        )
        return _in_time(ask, self._conn, within_s)

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                conn.close()


def _named(owners: Collection[Owner]) -> str:
    """The users for an error message; "a batch of events" for a look-up by key ids alone."""
    users = sorted(repr(user) for _, user in owners)
    more = f" and {len(users) - 3:,} more" if len(users) > 3 else ""
    return f"user {', '.join(users[:3])}{more}" if users else "a batch of events"


def _in_time(ask: Callable[[Connection], T], conn: Connection, within_s: float) -> T:
    """Asks, and closes the connection to a server that does not answer: all of this process waits meanwhile."""
    with socket.socket(fileno=os.dup(conn.fileno())) as line:
        timer = threading.Timer(within_s, _hang_up, [line])
        timer.daemon = True
        timer.start()
        try:
            return ask(conn)
        finally:
            timer.cancel()


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the answer came at the last moment
        line.shutdown(socket.SHUT_RDWR)


logger = logging.getLogger("turnlog.privacy")
CHANNEL = "turnlog_keys"
HELD_USERS = 20_000
# A batch of events with forged keys asks the stream once, not once for each.
UNISSUED_S = 1.0
AGAIN_S, ALIVE_S = 0.5, 5.0

_CHANGED = """
SELECT DISTINCT tenant, user_id FROM user_keys
WHERE key_id = ANY(%s) AND (retired_at IS NOT NULL OR destroyed_at IS NOT NULL)"""


class KeyStore:
    """The Keyring over the table user_keys and the stream that it is a copy of. Open it with `opened_keys`.

    Both look-ups raise KeyUnavailable when the key is not held and Postgres does not answer.
    """

    def __init__(self, nats_url: str, database_url: str, keks: Keks) -> None:
        self._url, self.keks = database_url, keks
        self._table = KeyTable(nats_url, database_url, keks)
        self._held: dict[Owner, KeysOfUser] = {}
        self._held_ids: set[str] = set()
        self._unissued: set[str] = set()
        self._unissued_until = 0.0
        self._forgotten = 0
        self._changing = threading.Lock()  # keys are fetched in threads too
        self._used = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def current(self, tenant: str, user: str) -> UserKey:
        """The key that seals what is said now, made for a user that has none."""
        held = self._held.get((tenant, user))
        if held is not None and held.current is not None:
            return held.current
        found = self._made([(tenant, user)])[tenant, user]
        if found.current is None:
            raise KeyUnavailable(f"the key of user {user!r} is being changed by others; try again")
        return found.current

    def find(self, tenant: str, user: str, key_id: str) -> UserKey | None:
        """The key that sealed something; None when it was destroyed.

        Raises InvalidEvent for another user's key, an invalid id, and a key that was never issued.
        """
        held = self._held.get((tenant, user))
        if held is not None and key_id in held.keys:
            return held.keys[key_id]
        wanted = str(_key_id(key_id))
        if wanted in self._unissued and time.monotonic() < self._unissued_until:
            raise _never_issued(wanted, user)
        found = self._fetched([(tenant, user)], [UUID(wanted)])
        mine = found.pop((tenant, user), KeysOfUser())
        if any(wanted in others.keys for others in found.values()):
            raise InvalidEvent(f"key {wanted} is not one of user {user!r} in tenant {tenant!r}")
        if wanted not in mine.keys:
            raise _never_issued(wanted, user)
        return mine.keys[wanted]

    def prefetch(self, key_ids: Iterable[str]) -> None:
        """Holds the keys that `find` is about to be asked for, with one query; never raises."""
        wanted = {key_id for key_id in key_ids if key_id not in self._held_ids}
        if wanted:
            with contextlib.suppress(KeyUnavailable):  # `find` raises it, for the event that needs the key
                self._fetched([], [UUID(key_id) for key_id in wanted])

    def prefetch_current(self, owners: Iterable[Owner]) -> None:
        """Holds the keys that `current` is about to be asked for, with one query for all; never raises."""
        missing = {owner for owner in owners if (held := self._held.get(owner)) is None or held.current is None}
        if missing:
            with contextlib.suppress(KeyUnavailable):  # `current` raises it, for the user
                self._made(missing)

    def forget(self, tenant: str, user: str) -> None:
        """The user's keys are looked up again before they are used again."""
        with self._changing:
            self._forgotten += 1
            self._drop((tenant, user))

    def close(self) -> None:
        self._table.close()

    async def follow(self, beat: Heartbeat) -> None:
        """Forgets what others change, until cancelled. Begins when the first key is held."""
        beat.beat()
        beat.round_s = math.inf
        await self._used.wait()
        beat.round_s = ROUND_S
        while True:
            beat.beat()
            try:
                await self._listen(beat)
            except (psycopg.Error, DatabaseUnavailable, TimeoutError) as error:
                logger.info("keys are held as they are, for Postgres is away: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _listen(self, beat: Heartbeat) -> None:
        async with await connect(self._url) as conn:
            await conn.execute(f"LISTEN {CHANNEL}")
            ids = [UUID(key_id) for held in list(self._held.values()) for key_id in held.keys]
            for tenant, user in await (await conn.execute(_CHANGED, (ids,))).fetchall():
                self.forget(tenant, user)
            while True:
                beat.beat()
                async for notice in conn.notifies(timeout=ALIVE_S):
                    self._hear(notice.payload)
                async with asyncio.timeout(ALIVE_S):  # a connection may be dead without anybody saying so
                    await conn.execute("SELECT 1")

    def _hear(self, payload: str) -> None:
        """Anyone who may connect may NOTIFY: a notice of another program must not end the listening."""
        try:
            tenant, user = json.loads(payload)
            self.forget(tenant, user)
        except (ValueError, TypeError):
            logger.warning("a notice on channel %s is not turnlog's and is ignored", CHANNEL)

    def _made(self, owners: Collection[Owner]) -> dict[Owner, KeysOfUser]:
        """The users' keys from the table, after those who have none have got one."""
        found = self._fetched(owners)
        without = [owner for owner in owners if owner not in found or found[owner].current is None]
        if without:
            self._table.make(without)
            found |= self._fetched(without)
        return found

    def _fetched(self, owners: Collection[Owner], key_ids: Collection[UUID] = ()) -> dict[Owner, KeysOfUser]:
        """Keys from the table, or from the stream; held from now on, unless some were forgotten during the query."""
        before = self._forgotten
        rows = self._table.rows(owners, key_ids)
        missing = _missing(key_ids, rows)
        if missing and self._table.take_over(missing):
            rows = self._table.rows(owners, key_ids)
            missing = _missing(key_ids, rows)
        if missing:
            self._unissued, self._unissued_until = missing, time.monotonic() + UNISSUED_S
        found = {owner: self._table.opened(mine) for owner, mine in rows.items()}
        with self._changing:
            is_held = bool(found) and before == self._forgotten
            for owner, keys in found.items() if is_held else ():
                self._hold(owner, keys)
        if is_held:
            self._loop.call_soon_threadsafe(self._used.set)
        return found

    def _hold(self, owner: Owner, keys: KeysOfUser) -> None:
        self._drop(owner)
        while len(self._held) >= HELD_USERS:
            self._drop(next(iter(self._held)))
        self._held[owner] = keys
        self._held_ids.update(keys.keys)

    def _drop(self, owner: Owner) -> None:
        dropped = self._held.pop(owner, None)
        if dropped is not None:
            self._held_ids.difference_update(dropped.keys)


def _missing(key_ids: Collection[UUID], rows: Mapping[Owner, Iterable[KeyRow]]) -> set[str]:
    return {str(key_id) for key_id in key_ids} - {row.id for mine in rows.values() for row in mine}


def _never_issued(key_id: str, user: str) -> InvalidEvent:
    return InvalidEvent(
        f"key {key_id} was never issued to user {user!r}: neither the stream {KEYS_STREAM} nor the table user_keys has "
        "it. If both are old copies, restore a newer one, then `turnlog dead-letters retry`"
    )


def _key_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidEvent(f"`sealedkey` {text[:40]!r} is not the id of a key") from None


@contextlib.asynccontextmanager
async def opened_keys(
    nats_url: str, database_url: str, keks: Keks | None, beats: Heartbeats | None = None
) -> AsyncIterator[KeyStore | None]:
    """The store while the block runs; None without a key-encryption key. beats: of the process."""
    if keks is None:
        yield None
        return
    store = KeyStore(nats_url, database_url, keks)
    try:
        async with (beats or Heartbeats()).running("process", "keys-follow", store.follow, asyncio.Event()):
            yield store
    finally:
        store.close()
