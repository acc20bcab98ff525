"""Provides keys for tests: a key-encryption key for tests with servers, and a keyring for tests without servers."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from turnlog.agent.privacy.keys import key_admin
from turnlog.agent.privacy.keys.kek import Keks, keks_of
from turnlog.agent.privacy.keys.key_stream import KeyStream
from turnlog.agent.privacy.keys.user_keys import KeyStore, opened_keys
from turnlog.agent.settings import Settings
from turnlog.events.errors import KeyUnavailable
from turnlog.events.log import Log
from turnlog.events.sealing import UserKey
from turnlog.projectors.engine.writer import Connection

# A value of TURNLOG_KEK, so that events are sealed in every test that plays roles.
KEK = "dHVybmxvZyB0dXJubG9nIHR1cm5sb2cgdHVybmxvZyE="


@dataclass(slots=True)
class KeysAtHand:
    """A keyring whose keys are derived from tenant and user. destroyed: True if all keys are destroyed. away: True if
    the table of keys cannot be reached."""

    destroyed: bool = False
    away: bool = False

    def current(self, tenant: str, user: str) -> UserKey:
        if self.away:
            raise KeyUnavailable(f"cannot look up the key of user {user!r}")
        raw = sha256(f"{tenant}\0{user}".encode()).digest()
        return UserKey(str(UUID(bytes=raw[:16], version=4)), AESGCM(raw))

    def find(self, tenant: str, user: str, key_id: str) -> UserKey | None:
        key = self.current(tenant, user)
        if key.id != key_id:
            raise KeyUnavailable(f"no key {key_id}")
        return None if self.destroyed else key

    async def prefetch(self, key_ids: Iterable[str]) -> None:
        """Does nothing, because all keys are available."""

    async def prefetch_current(self, owners: Iterable[tuple[str, str]]) -> None:
        """Does nothing, because all keys are available."""


def keks(kek: str = KEK, **settings: Any) -> Keks:
    configured = keks_of(Settings(database_url="postgresql://x", kek=SecretStr(kek), **settings))
    assert configured is not None
    return configured


@asynccontextmanager
async def store_on(stream: KeyStream, database_url: str, kek: str = KEK) -> AsyncIterator[KeyStore]:
    """Yields a key store as a new process has it, without cached keys."""
    async with opened_keys(stream.nc, database_url, keks(kek)) as store:
        assert store is not None
        yield store


async def current(store: KeyStore, user: str, tenant: str = "default") -> UserKey:
    """Returns the key that seals new events."""
    await store.prefetch_current([(tenant, user)])
    return store.current(tenant, user)


async def find(store: KeyStore, user: str, key_id: str, tenant: str = "default") -> UserKey | None:
    """Returns the key that opens events with this key id."""
    await store.prefetch([key_id])
    return store.find(tenant, user, key_id)


async def destroy_keys(log: Log, conn: Connection, user: str, tenant: str = "default") -> int:
    return await key_admin.destroy(conn, KeyStream(log.nc, keks()), tenant, user)


async def key_of(log: Log, seq: int) -> str:
    """Returns the id of the key that sealed an event."""
    key: str = json.loads((await log.stored(seq)).body)["sealedkey"]
    return key
