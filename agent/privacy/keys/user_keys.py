"""Keeps users' keys in the memory of a process, for sealing and opening events of the log.

A key is looked up once and then kept, so that the log works while Postgres is unavailable. Callers fetch the keys of a
batch of events before they read or write it; opening and sealing use only keys in memory. Other processes send a NOTIFY
for keys that they retire or destroy; a process that missed one, because Postgres was unavailable, compares all its keys
with the table. The table is read first; it is a copy of the stream of keys. A key is on the stream before anything is
sealed with it, so a key that is in neither was never issued.
"""

import asyncio
import contextlib
import functools
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from cachetools import TTLCache
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nats.aio.client import Client
from psycopg import AsyncConnection

from turnlog.agent.privacy.keys.kek import Keks
from turnlog.agent.privacy.keys.key_stream import PLACE, KeyRecord, KeyStream, new_record, taking_over
from turnlog.events.append import MAX_BATCH
from turnlog.events.errors import DatabaseUnavailable, InvalidEvent, KeyUnavailable
from turnlog.events.heartbeats import ROUND_S, Heartbeat, Heartbeats
from turnlog.events.sealing import UserKey
from turnlog.events.subjects import KEYS_STREAM
from turnlog.events.tasks import within
from turnlog.projectors.engine.database import connect, session_options
from turnlog.projectors.engine.writer import Connection

CONNECT_S, ANSWER_MS = 2, 3_000
# Limits for servers that hang; a working server applies its own shorter limit (ANSWER_MS).
HANGS_S, STREAM_S = 4.0, 5.0
# For this time after a failure, calls fail at once instead of waiting for a server that is unavailable.
AWAY_S = 1.0
T = TypeVar("T")

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
    """The keys of one user. keys: id → key, None for a destroyed key. current: the key that seals new events."""

    current: UserKey | None = None
    keys: dict[str, UserKey | None] = field(default_factory=dict)


class KeyTable:
    """Reads and writes the table of keys. All methods raise KeyUnavailable if Postgres or NATS does not answer."""

    def __init__(self, stream: KeyStream, database_url: str) -> None:
        self._stream, self._url = stream, database_url
        self._conn: Connection | None = None
        self._away_until = 0.0

    async def rows(self, owners: Collection[Owner], key_ids: Collection[UUID] = ()) -> dict[Owner, list[KeyRow]]:
        """Returns all keys of these users and of the owners of these keys, the oldest of each user first. Makes one
        query."""
        asked = {"tenants": [t for t, _ in owners], "users": [u for _, u in owners], "ids": list(key_ids)}

        async def ask(conn: Connection) -> list[tuple[Any, ...]]:
            return await (await conn.execute(_KEYS, asked)).fetchall()

        rows: dict[Owner, list[KeyRow]] = {}
        for values in await self._asked(ask, f"the keys of {_named(owners)}"):
            row = KeyRow(*values)
            rows.setdefault((row.tenant, row.user), []).append(row)
        return rows

    async def make(self, owners: Collection[Owner]) -> None:
        """Makes a current key for each of these users, except for users who get one from another process at the same
        time."""
        named = sorted(owners)  # sorted, because otherwise two processes could deadlock
        for start in range(0, len(named), MAX_BATCH):
            part = [new_record(self._stream.keks, tenant, user) for tenant, user in named[start : start + MAX_BATCH]]
            await self._asked(functools.partial(self._issue, part), f"keys for {_named(owners)}", HANGS_S + STREAM_S)

    async def _issue(self, made: Sequence[KeyRecord], conn: Connection) -> None:
        """Puts new keys on the stream and into the table. The stream acknowledges a key before it is visible in the
        table, so that keys in use survive the loss of Postgres."""
        columns = [[record[at] for record in made] for at in range(5)]
        async with conn.transaction():
            won = {key_id for (key_id,) in await (await conn.execute(_MAKE, columns)).fetchall()}
            if mine := [record for record in made if record.id in won]:
                await conn.execute(PLACE, ([record.id for record in mine], await self._stream.put(mine)))

    async def take_over(self, key_ids: Collection[str]) -> bool:
        """Copies these keys from the stream to the table; returns False if the stream has none of them."""
        if not (records := await self._stream.of_keys(key_ids)):
            return False
        await self._asked(lambda conn: conn.cursor().executemany(*taking_over(records)), "keys back")
        return True

    async def _asked(self, ask: Callable[[Connection], Awaitable[T]], what: str, within_s: float = HANGS_S) -> T:
        """Asks Postgres; if the connection is dead, asks once more on a new one."""
        if time.monotonic() < self._away_until:
            raise KeyUnavailable(f"cannot get {what}: Postgres does not answer; it is tried again soon")

        async def answer() -> T:
            if self._conn is None:
                self._conn = await AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=CONNECT_S,
                    tcp_user_timeout=ANSWER_MS,
                    options=f"{session_options()} -c statement_timeout={ANSWER_MS}",
                )
            return await ask(self._conn)

        try:
            if self._conn is not None:
                with contextlib.suppress(psycopg.Error, TimeoutError):
                    return await within(within_s, answer())
                await self.close()
            return await within(CONNECT_S + within_s, answer())
        except (psycopg.Error, TimeoutError) as error:
            await self.close()
            self._away_until = time.monotonic() + AWAY_S
            cause = " ".join(str(error).split()) or f"for {within_s:g} s"
            raise KeyUnavailable(
                f"cannot get {what}: Postgres does not answer ({cause}). Nothing was stored; users seen before go "
                "on, others can when it is back. Check DATABASE_URL"
            ) from error

    async def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()


def _named(owners: Collection[Owner]) -> str:
    """Returns the users for an error message; "a batch of events" for a look-up by key ids alone."""
    users = sorted(repr(user) for _, user in owners)
    more = f" and {len(users) - 3:,} more" if len(users) > 3 else ""
    return f"user {', '.join(users[:3])}{more}" if users else "a batch of events"


logger = logging.getLogger("turnlog.privacy")
CHANNEL = "turnlog_keys"
HELD_USERS = 20_000
# A key that was never issued is looked up at most once in this time, even if many events name it.
UNISSUED_S = 5.0
AGAIN_S, ALIVE_S = 0.5, 5.0
FETCH_TRIES = 5

_CHANGED = """
SELECT DISTINCT tenant, user_id FROM user_keys
WHERE key_id = ANY(%s) AND (retired_at IS NOT NULL OR destroyed_at IS NOT NULL)"""


class KeyStore:
    """Implements Keyring with the table user_keys and the stream that the table is a copy of. Open it with
    `opened_keys`."""

    def __init__(self, stream: KeyStream, database_url: str) -> None:
        self._url, self.keks = database_url, stream.keks
        self._table = KeyTable(stream, database_url)
        self._held: dict[Owner, KeysOfUser] = {}
        self._owners: dict[str, Owner] = {}  # id of a held key → its user
        self._missed: set[str] = set()  # ids that `find` did not have; the next prefetch includes them
        self._unissued: TTLCache[str, bool] = TTLCache(HELD_USERS, UNISSUED_S)
        self._problem = ""
        self._changes = 0
        self._fetching = asyncio.Lock()
        self._used = asyncio.Event()

    def current(self, tenant: str, user: str) -> UserKey:
        """Returns the key that seals the user's new events. Raises KeyUnavailable if `prefetch_current` did not fetch
        one."""
        held = self._held.get((tenant, user))
        if held is None or held.current is None:
            raise KeyUnavailable(f"the key of user {user!r} is being changed by others; try again")
        return held.current

    def find(self, tenant: str, user: str, key_id: str) -> UserKey | None:
        """Returns the key with this id; None if it was destroyed.

        Raises InvalidEvent for another user's key, an invalid id, and a key that was never issued; KeyUnavailable for a
        key that `prefetch` could not fetch.
        """
        wanted = key_id if key_id in self._owners else str(_key_id(key_id))
        owner = self._owners.get(wanted)
        if owner == (tenant, user):
            return self._held[owner].keys[wanted]
        if owner is not None:
            raise InvalidEvent(f"key {wanted} is not one of user {user!r} in tenant {tenant!r}")
        if wanted in self._unissued:
            raise InvalidEvent(
                f"key {wanted} was never issued to user {user!r}: neither the stream {KEYS_STREAM} nor the table "
                "user_keys has it. If both are old copies, restore a newer one, then `turnlog dead-letters retry`"
            )
        self._missed.add(wanted)
        raise KeyUnavailable(self._problem or f"key {wanted} was not fetched with its events; try again")

    async def prefetch(self, key_ids: Iterable[str]) -> None:
        """Loads the keys that the next calls of `find` will need, with one query if the table has all of them; never
        raises an error."""
        if not (wanted := self._not_held(key_ids)):
            return
        async with self._fetching:
            try:
                await self._fetch((), list(_key_ids(self._not_held(wanted))))
                self._problem = ""
                self._missed.clear()
            except KeyUnavailable as error:  # `find` raises it, for the event that needs the key
                self._problem = str(error)

    def _not_held(self, key_ids: Iterable[str]) -> set[str]:
        return {
            key_id
            for key_id in (*key_ids, *self._missed)
            if key_id not in self._owners and key_id not in self._unissued
        }

    async def prefetch_current(self, owners: Iterable[Owner]) -> None:
        """Loads the keys that the next calls of `current` will need; makes keys for users who have none. Raises
        KeyUnavailable."""
        if not (without := self._without_current(owners)):
            return
        async with self._fetching:
            if without := self._without_current(without):
                await self._fetch(without)
            if without := self._without_current(without):
                await self._table.make(without)
                await self._fetch(without)

    def _without_current(self, owners: Iterable[Owner]) -> set[Owner]:
        return {owner for owner in owners if (held := self._held.get(owner)) is None or held.current is None}

    async def refresh(self, owners: Iterable[Owner]) -> None:
        """Fetches the loaded keys of these users again, because they were retired or destroyed. Until they are fetched,
        none of them seals events."""
        self._changes += 1
        changed = [owner for owner in owners if owner in self._held]
        for owner in changed:
            self._held[owner].current = None
        async with self._fetching:
            try:
                await self._fetch(changed)
            except KeyUnavailable:  # they are fetched when they are needed
                for owner in changed:
                    self._drop(owner)

    async def close(self) -> None:
        await self._table.close()

    async def follow(self, beat: Heartbeat) -> None:
        """Refreshes keys that other processes change, until cancelled. Begins when the first key is loaded."""
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
            ids = [UUID(key_id) for key_id in self._owners]
            await self.refresh(await (await conn.execute(_CHANGED, (ids,))).fetchall())
            while True:
                beat.beat()
                async for notice in conn.notifies(timeout=ALIVE_S):
                    await self._hear(notice.payload)
                async with asyncio.timeout(ALIVE_S):  # a dead connection may not raise
                    await conn.execute("SELECT 1")

    async def _hear(self, payload: str) -> None:
        """Looks up a user's keys again after a notification. Every program that may connect can send a NOTIFY, so a
        foreign notification must not end the loop."""
        try:
            tenant, user = json.loads(payload)
            await self.refresh([(tenant, user)])
        except (ValueError, TypeError):
            logger.warning("a notice on channel %s is not turnlog's and is ignored", CHANNEL)

    async def _fetch(self, owners: Collection[Owner], key_ids: Collection[UUID] = ()) -> None:
        """Loads keys from the table, or from the stream, in their state after the latest notification."""
        if not owners and not key_ids:
            return
        for _ in range(FETCH_TRIES):
            before = self._changes
            rows = await self._table.rows(owners, key_ids)
            if (missing := _missing(key_ids, rows)) and await self._table.take_over(missing):
                rows = await self._table.rows(owners, key_ids)
                missing = _missing(key_ids, rows)
            if before == self._changes:
                break
        else:
            raise KeyUnavailable("users' keys are being changed by others; try again")
        self._unissued.update(dict.fromkeys(missing, True))
        unusable: KeyUnavailable | None = None
        for owner, mine in rows.items():
            try:
                self._hold(owner, self._opened(mine))
            except KeyUnavailable as error:  # the keys of other users may be usable
                unusable = error
        if unusable is not None:
            raise unusable

    def _opened(self, rows: Iterable[KeyRow]) -> KeysOfUser:
        """Returns the keys of one user, ready for use. Raises KeyUnavailable."""
        opened = KeysOfUser()
        for row in rows:
            key = None
            if row.wrapped is not None:
                raw = self.keks.unwrap(row.wrapped, row.kek_id, row.id, row.tenant, row.user)
                key = UserKey(row.id, AESGCM(raw))
            opened.keys[row.id] = key
            opened.current = key if row.is_current else opened.current
        return opened

    def _hold(self, owner: Owner, keys: KeysOfUser) -> None:
        self._drop(owner)
        while len(self._held) >= HELD_USERS:
            self._drop(next(iter(self._held)))
        self._held[owner] = keys
        self._owners.update(dict.fromkeys(keys.keys, owner))
        self._used.set()

    def _drop(self, owner: Owner) -> None:
        for key_id in self._held.pop(owner, KeysOfUser()).keys:
            del self._owners[key_id]


def _missing(key_ids: Collection[UUID], rows: Mapping[Owner, Iterable[KeyRow]]) -> set[str]:
    return {str(key_id) for key_id in key_ids} - {row.id for mine in rows.values() for row in mine}


def _key_ids(texts: Iterable[str]) -> Iterator[UUID]:
    for text in texts:
        with contextlib.suppress(InvalidEvent):  # `find` raises it
            yield _key_id(text)


def _key_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidEvent(f"`sealedkey` {text[:40]!r} is not the id of a key") from None


@contextlib.asynccontextmanager
async def opened_keys(
    nc: Client, database_url: str, keks: Keks | None, beats: Heartbeats | None = None
) -> AsyncIterator[KeyStore | None]:
    """Yields the store of users' keys, and closes it after the block; yields None if there is no key-encryption key.
    beats: the heartbeats of the process."""
    if keks is None:
        yield None
        return
    store = KeyStore(KeyStream(nc, keks), database_url)
    try:
        async with (beats or Heartbeats()).running("process", "keys-follow", store.follow, asyncio.Event()):
            yield store
    finally:
        await store.close()
