"""Personal fields of an event, sealed under a key of its user (M9): destroying the key erases them from the log.

On the wire `data` lacks the fields; the CloudEvents extension attributes `sealed` (base64 of a nonce of 12 bytes and
AES-256-GCM's ciphertext of their JSON, from 4 KB on as a zlib stream) and `sealedkey` (the key's id) stand beside it.
Id, tenant, user, type and thread are authenticated with it: a seal that was moved to another event does not open.
Which fields are personal, and what stands in their place when the key is gone, each contract says (PERSONAL).
"""

import os
import zlib
from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic_core import from_json

from turnlog.events.contracts import Event
from turnlog.events.errors import EventTooLarge, InvalidEvent, KeyUnavailable
from turnlog.events.frozen import EventContract, Frozen

NONCE_BYTES = 12
# Base64 makes a third more of everything; what is long enough to gain by it is compressed first.
COMPRESSED_FROM = 4_096
_ZLIB = b"\x78"  # no JSON object begins so
Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserKey:
    """A key of one user, ready for use. id: a UUID as text."""

    id: str
    cipher: AESGCM


class Keyring(Protocol):
    """Where keys come from. Both raise KeyUnavailable when they cannot be asked for now."""

    def current(self, tenant: str, user: str) -> UserKey:
        """The key that seals what is said now; a user without one gets one."""

    def find(self, tenant: str, user: str, key_id: str) -> UserKey | None:
        """The key that sealed something; None when it was destroyed. Raises InvalidEvent for an id that is none."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The personal fields of a contract. tombstones: path ("memory.content") → value; the others as pydantic wants."""

    tombstones: tuple[tuple[tuple[str, ...], Any], ...]
    include: dict[str, Any]
    exclude: dict[str, Any]

    def any_in(self, data: Frozen) -> bool:
        return any(_at(data, path) for path, _ in self.tombstones)


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
    """The attributes `sealed` and `sealedkey`.

    Raises ValueError for a text that is no valid Unicode, EventTooLarge over `room` bytes: a log of small messages
    must not grow large ones when it is read.
    """
    words = event.data.model_dump_json(exclude_none=True, include=fields.include).encode()
    if room is not None and len(words) > room:
        raise EventTooLarge.by(len(words), room, event.id)
    if len(words) >= COMPRESSED_FROM:
        words = zlib.compress(words, 1)
    nonce = os.urandom(NONCE_BYTES)
    bound = _bound(str(event.id), event.tenant, user, event.type, event.thread)
    return b2a_base64(nonce + key.cipher.encrypt(nonce, words, bound), newline=False).decode(), key.id


class Sealed(NamedTuple):
    """What an envelope says of its seal, with the attributes that are authenticated."""

    id: str
    tenant: str
    user: str | None
    type: str
    thread: str
    sealed: object
    key_id: object

    def opened(self, keyring: Keyring | None) -> Data | None:
        """The personal fields, nested as in data; None when their key was destroyed.

        Raises InvalidEvent for a seal that is broken or of another event, KeyUnavailable when it cannot be opened now.
        """
        user, key_id = self.user, self.key_id
        if user is None or not isinstance(key_id, str) or not isinstance(self.sealed, str):
            raise InvalidEvent(f"event {self.id} is sealed and lacks its user, or `sealedkey`, or `sealed` is no text")
        if keyring is None:
            raise KeyUnavailable(
                f"event {self.id} is sealed with key {key_id[:40]} and this reader has no keys; set TURNLOG_KEK"
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
                f"the seal of event {self.id} does not open with key {key.id}: it was changed, or is of another event"
            ) from None
        if not isinstance(words, dict):
            raise InvalidEvent(f"the seal of event {self.id} holds no JSON object")
        return words


def merged(data: Data, words: Data) -> Data:
    """data with the opened fields in it."""
    found = {**data, **words}
    for name, value in words.items():
        if isinstance(value, dict) and isinstance(data.get(name), dict):
            found[name] = {**data[name], **value}
    return found


def with_tombstones(data: Data, contract: type[Frozen]) -> Data:
    """data with what stands in place of the personal fields: valid, and of no harm to any projector."""
    found = dict(data)
    for path, value in fields_of(contract).tombstones:
        if len(path) == 1:
            found[path[0]] = value
        elif isinstance(found.get(path[0]), dict):
            found[path[0]] = {**found[path[0]], path[1]: value}
    return found


def is_erased(event: Event) -> bool:
    """Whether every personal field is the tombstone that a destroyed key leaves behind."""
    tombstones = fields_of(type(event.data)).tombstones
    return bool(tombstones) and all(_at(event.data, path) == value for path, value in tombstones)


def _at(data: Frozen, path: tuple[str, ...]) -> Any:
    found: Any = data
    for name in path:
        found = None if found is None else getattr(found, name)
    return found


def _bound(event_id: str, tenant: str, user: str, type_: str, thread: str) -> bytes:
    """Ids hold no NUL, so no two different quintuples give the same bytes."""
    return "\0".join((event_id, tenant, user, type_, thread)).encode()
