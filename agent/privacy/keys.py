"""Users' keys, held by a process for sealing and opening what stands in the log (M9).

A key is looked up once and then held: the log goes on while Postgres is away. Other processes say by NOTIFY what they
retired or destroyed; whoever missed that, for Postgres was away, compares all it holds with the table.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg

from turnlog.agent.privacy.kek import Keks
from turnlog.agent.privacy.key_table import KeysOfUser, KeyTable
from turnlog.events.errors import DatabaseUnavailable, InvalidEvent, KeyUnavailable
from turnlog.events.sealing import UserKey
from turnlog.projectors.database import connect

logger = logging.getLogger("turnlog.privacy")
CHANNEL = "turnlog_keys"
HELD_USERS = 20_000
AGAIN_S, ALIVE_S = 0.5, 5.0

_CHANGED = """
SELECT DISTINCT tenant, user_id FROM user_keys
WHERE key_id = ANY(%s) AND (retired_at IS NOT NULL OR destroyed_at IS NOT NULL)"""


class KeyStore:
    """The Keyring over the table user_keys. Open it with `opened_keys`.

    Both look-ups raise KeyUnavailable when the key is not held and Postgres does not answer.
    """

    def __init__(self, database_url: str, keks: Keks) -> None:
        self._url, self.keks = database_url, keks
        self._table = KeyTable(database_url, keks)
        self._held: dict[tuple[str, str], KeysOfUser] = {}
        self._forgotten = 0
        self._used = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def current(self, tenant: str, user: str) -> UserKey:
        """The key that seals what is said now, made for a user that has none."""
        held = self._held.get((tenant, user))
        if held is not None and held.current is not None:
            return held.current
        found = self._looked_up(tenant, user)
        if found.current is None:
            self._table.make(tenant, user)
            found = self._looked_up(tenant, user)  # ours, or another's who was first
        if found.current is None:
            raise KeyUnavailable(f"the key of user {user!r} is being changed by others; try again")
        return found.current

    def find(self, tenant: str, user: str, key_id: str) -> UserKey | None:
        """The key that sealed something; None when it was destroyed.

        Raises InvalidEvent for another user's key or what is no id. A key that the table lacks is KeyUnavailable too:
        the table is another's or an old copy, and comes back with a backup.
        """
        held = self._held.get((tenant, user))
        if held is not None and key_id in held.keys:
            return held.keys[key_id]
        wanted = _key_id(key_id)
        found = self._looked_up(tenant, user, wanted)
        if str(wanted) not in found.keys:
            raise KeyUnavailable(
                f"key {key_id} of user {user!r} is not in the table user_keys. It belongs to another database, or this "
                "one was restored from an older copy: restore user_keys from the newest backup (docs/privacy.md)"
            )
        return found.keys[str(wanted)]

    def forget(self, tenant: str, user: str) -> None:
        """The user's keys are looked up again before they are used again."""
        self._forgotten += 1
        self._held.pop((tenant, user), None)

    def close(self) -> None:
        self._table.close()

    async def follow(self) -> None:
        """Forgets what others change, until cancelled. Begins when the first key is held."""
        await self._used.wait()
        while True:
            try:
                await self._listen()
            except (psycopg.Error, DatabaseUnavailable, TimeoutError) as error:
                logger.info("keys are held as they are, for Postgres is away: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _listen(self) -> None:
        async with await connect(self._url) as conn:
            await conn.execute(f"LISTEN {CHANNEL}")
            ids = [UUID(key_id) for held in self._held.values() for key_id in held.keys]
            for tenant, user in await (await conn.execute(_CHANGED, (ids,))).fetchall():
                self.forget(tenant, user)
            while True:
                async for told in conn.notifies(timeout=ALIVE_S):
                    self._hear(told.payload)
                async with asyncio.timeout(ALIVE_S):  # a connection may be dead without anybody saying so
                    await conn.execute("SELECT 1")

    def _hear(self, payload: str) -> None:
        """Whoever may connect may NOTIFY: what is none of ours must not end the listening."""
        try:
            tenant, user = json.loads(payload)
            self.forget(tenant, user)
        except (ValueError, TypeError):
            logger.warning("a notice on channel %s is none of turnlog's and is passed over", CHANNEL)

    def _looked_up(self, tenant: str, user: str, key_id: UUID | None = None) -> KeysOfUser:
        """From the table; held from now on, unless something was forgotten while it was asked."""
        before = self._forgotten
        found = self._table.keys_of(tenant, user, key_id)
        if found.keys and before == self._forgotten:
            while len(self._held) >= HELD_USERS:
                self._held.pop(next(iter(self._held)))
            self._held[tenant, user] = found
            self._loop.call_soon_threadsafe(self._used.set)
        return found


def _key_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidEvent(f"`sealedkey` {text[:40]!r} is no id of a key") from None


@contextlib.asynccontextmanager
async def opened_keys(database_url: str, keks: Keks | None) -> AsyncIterator[KeyStore | None]:
    """The store while the block runs; None without a key-encryption key."""
    if keks is None:
        yield None
        return
    store = KeyStore(database_url, keks)
    following = asyncio.create_task(store.follow(), name="keys-follow")
    try:
        yield store
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        store.close()
