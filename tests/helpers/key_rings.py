"""Keys for tests: the key-encryption key of those with servers, and a keyring for what needs no database."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.events.errors import KeyUnavailable
from turnlog.events.sealing import UserKey

# A value of TURNLOG_KEK: sealing is on in every test that plays roles.
KEK = "dHVybmxvZyB0dXJubG9nIHR1cm5sb2cgdHVybmxvZyE="


@dataclass(slots=True)
class KeysAtHand:
    """Every user's key follows from tenant and user. destroyed: no key of anybody is left. away: nor is the table."""

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

    def prefetch(self, key_ids: Iterable[str]) -> None:
        """They are at hand."""

    def prefetch_current(self, owners: Iterable[tuple[str, str]]) -> None:
        """They are at hand."""
