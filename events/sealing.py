"""Seals the personal fields of an event under a key of its user, so that destroying the key erases them from the log.

On the wire `data` lacks these fields. The envelope has two CloudEvents extension attributes instead: `sealed` (base64
of a nonce of 12 bytes and the AES-256-GCM ciphertext of their JSON, which from 4 KB on is compressed by zlib) and
`sealedkey` (the key's id). Id, tenant, user, type and thread are authenticated too, so a seal that is moved to another
event does not open. Each contract declares its personal fields and their tombstones (PERSONAL).
"""

import os
import re
import zlib
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic_core import from_json

from turnlog.events.contracts import Event
from turnlog.events.contracts.base import EventContract, Frozen
from turnlog.events.errors import EventTooLarge, InvalidEvent, InvalidToken
from turnlog.events.subjects import check_id, check_tenant

NONCE_BYTES = 12
# Base64 adds a third to the size, so fields that are long enough for compression to help are compressed first.
COMPRESSED_FROM = 4_096
_SEALED_KEY = re.compile(rb'"sealedkey"\s*:\s*"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"', re.IGNORECASE)
_ZLIB = b"\x78"  # JSON objects do not begin with this byte
Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserKey:
    """An unwrapped key of one user. id: a UUID as text."""

    id: str
    cipher: AESGCM


class Keyring(Protocol):
    """The source of users' keys. `prefetch` and `prefetch_current` fetch keys; `current` and `find` return fetched keys
    and raise KeyUnavailable if fetching failed."""

    def current(self, tenant: str, user: str) -> UserKey:
        """Returns the key for new events."""

    def find(self, tenant: str, user: str, key_id: str) -> UserKey | None:
        """Returns the key with this id; None if it was destroyed. Raises InvalidEvent for an invalid id."""

    async def prefetch(self, key_ids: Iterable[str]) -> None:
        """Fetches keys for later calls of `find` in one query. It never raises; `find` does."""

    async def prefetch_current(self, owners: Iterable[tuple[str, str]]) -> None:
        """Fetches the keys of these (tenant, user) pairs for later calls of `current`, and creates missing keys. Raises
        KeyUnavailable."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A contract's personal fields. tombstones: (path, value) pairs; ("memory", "content") is a path. include, exclude:
    the arguments of pydantic's model_dump_json."""

    tombstones: tuple[tuple[tuple[str, ...], Any], ...]
    include: dict[str, Any]
    exclude: dict[str, Any]


@cache
def fields_of(contract: type[EventContract]) -> Fields:
    named = {tuple(path.split(".")): value for path, value in contract.PERSONAL.items()}
    include: dict[str, Any] = {}
    for first, *rest in named:
        if rest:
            include.setdefault(first, {})[rest[0]] = True
        else:
            include[first] = True
    return Fields(tuple(named.items()), include, {"data": {"type": True, **include}})


def seal(event: Event, user: str, key: UserKey, fields: Fields, room: int | None = None) -> tuple[str, str]:
    """Returns the attributes `sealed` and `sealedkey`.

    Raises ValueError for text that is not valid Unicode, and EventTooLarge for fields of more than `room` bytes,
    because a small message must not become huge when it is decompressed.
    """
    words = event.data.model_dump_json(exclude_none=True, include=fields.include).encode()
    if room is not None and len(words) > room:
        raise EventTooLarge.by(len(words), room, event.id)
    if len(words) >= COMPRESSED_FROM:
        words = zlib.compress(words, 1)
    nonce = os.urandom(NONCE_BYTES)
    bound = _bound(str(event.id), event.tenant, user, event.type, event.thread)
    return b2a_base64(nonce + key.cipher.encrypt(nonce, words, bound), newline=False).decode(), key.id


def owners_to_seal(events: Iterable[Event]) -> set[tuple[str, str]]:
    """Returns the (tenant, user) pairs whose keys `seal` needs; events with invalid ids are refused later."""
    return {
        (event.tenant, event.user)
        for event in events
        if event.user and fields_of(type(event.data)).tombstones and _valid_owner(event.tenant, event.user)
    }


def _valid_owner(tenant: str, user: str) -> bool:
    try:
        return bool(check_tenant(tenant) and check_id("user", user))
    except InvalidToken:
        return False


def key_ids_in(bodies: Iterable[bytes]) -> set[str]:
    """Returns the ids of the keys that encoded events are sealed with. It searches without parsing, so it may miss
    some."""
    return {key_id.decode().lower() for body in bodies for key_id in _SEALED_KEY.findall(body)}


class Sealed(NamedTuple):
    """The seal of an envelope with the authenticated attributes."""

    id: str
    tenant: str
    user: str | None
    type: str
    thread: str
    sealed: object
    key_id: object

    def opened(self, keyring: Keyring | None) -> Data | None:
        """Returns the personal fields, nested as in data; None if their key was destroyed.

        Raises InvalidEvent for a broken seal or the seal of another event, KeyUnavailable if the key cannot be fetched
        now.
        """
        user, key_id = self.user, self.key_id
        if user is None or not isinstance(key_id, str) or not isinstance(self.sealed, str):
            raise InvalidEvent(f"event {self.id} is sealed and lacks its user, or `sealedkey`, or `sealed` is not text")
        if keyring is None:
            raise InvalidEvent(
                f"event {self.id} is sealed with key {key_id[:40]}, and there are no keys without TURNLOG_KEK. If it "
                "was lost, set it, then `turnlog dead-letters retry`"
            )
        key = keyring.find(self.tenant, user, key_id)
        return None if key is None else self._decrypted(key, user)

    def _decrypted(self, key: UserKey, user: str) -> Data:
        try:
            raw = a2b_base64(str(self.sealed), strict_mode=True)
            bound = _bound(self.id, self.tenant, user, self.type, self.thread)
            plain = key.cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bound)
            words = from_json(zlib.decompress(plain) if plain[:1] == _ZLIB else plain, allow_inf_nan=False)
        except (InvalidTag, ValueError, zlib.error):
            raise InvalidEvent(
                f"the seal of event {self.id} does not open with key {key.id}: it was changed, or belongs to "
                "another event"
            ) from None
        if not isinstance(words, dict):
            raise InvalidEvent(f"the seal of event {self.id} does not contain a JSON object")
        return words


def merged(data: Data, words: Data) -> Data:
    """Returns the data with the opened fields added."""
    combined = {**data, **words}
    for name, value in words.items():
        if isinstance(value, dict) and isinstance(data.get(name), dict):
            combined[name] = {**data[name], **value}
    return combined


def with_tombstones(data: Data, contract: type[Frozen]) -> Data:
    """Returns the data with tombstones, which every projector accepts, as the personal fields."""
    filled = dict(data)
    for path, value in fields_of(contract).tombstones:
        if len(path) == 1:
            filled[path[0]] = value
        elif isinstance(filled.get(path[0]), dict):
            filled[path[0]] = {**filled[path[0]], path[1]: value}
    return filled


def is_erased(event: Event) -> bool:
    """Returns whether every personal field equals its tombstone, as after the key was destroyed. Fields that were never
    set may equal it too."""
    tombstones = fields_of(type(event.data)).tombstones
    return bool(tombstones) and all(_at(event.data, path) == value for path, value in tombstones)


def _at(data: Frozen, path: tuple[str, ...]) -> Any:
    value: Any = data
    for name in path:
        value = None if value is None else getattr(value, name)
    return value


def _bound(event_id: str, tenant: str, user: str, type_: str, thread: str) -> bytes:
    """Returns the authenticated attributes as bytes. Ids contain no NUL, so different attributes yield different
    bytes."""
    return "\0".join((event_id, tenant, user, type_, thread)).encode()
