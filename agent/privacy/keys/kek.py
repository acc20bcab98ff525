"""Loads the key-encryption key (KEK). It wraps the key of every user, so that the key table alone cannot decrypt
anything.

The KEK is 32 random bytes, in TURNLOG_KEK as base64 or, for the embedded Postgres, in a file of the data folder. Its id
is a fingerprint, so that a wrong KEK is detected before it is used.
"""

import binascii
import contextlib
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.agent.private_files import made_once
from turnlog.agent.settings import Settings
from turnlog.events.errors import KeyUnavailable, TurnlogError

KEK_BYTES, NONCE_BYTES = 32, 12
FILE = "kek"


class InvalidKek(TurnlogError):
    """A key-encryption key is missing or not base64 of 32 bytes, or its file cannot be read or written."""

    code = "invalid-kek"


class WrongKek(TurnlogError):
    """Users' keys are wrapped by a key-encryption key that is not configured; nothing was read or written."""

    code = "wrong-kek"


@dataclass(frozen=True, slots=True)
class Kek:
    """A key-encryption key. id: a fingerprint that does not reveal the key. wrap and unwrap bind a key to its id,
    tenant and user."""

    id: str
    cipher: AESGCM

    def wrap(self, key: bytes, key_id: str, tenant: str, user: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self.cipher.encrypt(nonce, key, _bound(key_id, tenant, user))

    def unwrap(self, wrapped: bytes, key_id: str, tenant: str, user: str) -> bytes:
        """Returns the key that `wrapped` contains. Raises KeyUnavailable if another KEK wrapped the
        bytes, or if they or the ids do not match."""
        try:
            return self.cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _bound(key_id, tenant, user))
        except (InvalidTag, ValueError):
            raise KeyUnavailable(
                f"key {key_id} does not open with key-encryption key {self.id}: it was changed, in user_keys or on "
                "the stream of keys; restore either from a backup"
            ) from None


@dataclass(frozen=True, slots=True)
class Keks:
    """The KEK that wraps new keys, and older KEKs that only unwrap. source: the variable or file of the current KEK,
    for messages."""

    current: Kek
    older: tuple[Kek, ...]
    source: str

    @property
    def by_id(self) -> Mapping[str, Kek]:
        return {kek.id: kek for kek in (*self.older, self.current)}

    def unwrap(self, wrapped: bytes, kek_id: str, key_id: str, tenant: str, user: str) -> bytes:
        """Returns the key, unwrapped by the KEK that wrapped it. Raises KeyUnavailable if that KEK is not
        configured."""
        if (kek := self.by_id.get(kek_id)) is None:
            raise KeyUnavailable(
                f"key {key_id} is wrapped by key-encryption key {kek_id}, which is not given; set TURNLOG_KEK_OLD to it"
            )
        return kek.unwrap(wrapped, key_id, tenant, user)


def keks_of(settings: Settings) -> Keks | None:
    """Returns the KEK in TURNLOG_KEK or else, for the embedded Postgres, the KEK in the file of the data folder,
    together with older KEKs. Returns None if neither exists yet.

    Raises InvalidKek.
    """
    path = settings.home.expanduser() / FILE
    old = () if settings.kek_old is None else (_kek(settings.kek_old.get_secret_value(), "TURNLOG_KEK_OLD"),)
    if settings.kek is not None:
        mine = (_kek(_read(path), str(path)),) if settings.database_url is None and path.exists() else ()
        return Keks(_kek(settings.kek.get_secret_value(), "TURNLOG_KEK"), (*mine, *old), "TURNLOG_KEK")
    if settings.database_url is not None or not path.exists():
        return None
    return Keks(_kek(_read(path), str(path)), old, str(path))


def make_kek(settings: Settings) -> Keks | None:
    """Creates the file in the data folder unless it exists; returns the result of keks_of. Raises InvalidKek."""
    path = settings.home.expanduser() / FILE
    with _file_errors(path):
        made_once(path, new_kek)
    return keks_of(settings)


def new_kek() -> str:
    """Returns a new random value for TURNLOG_KEK."""
    return b64encode(secrets.token_bytes(KEK_BYTES)).decode()


def _kek(text: str, source: str) -> Kek:
    try:
        raw = b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != KEK_BYTES:
        raise InvalidKek(
            f"{source} is not base64 of {KEK_BYTES} bytes; `turnlog encryption-key new-kek` prints one that is. Users' "
            "words that were sealed under another one open only with that"
        )
    return Kek(sha256(b"turnlog kek " + raw).hexdigest()[:16], AESGCM(raw))


def _read(path: Path) -> str:
    with _file_errors(path):
        return path.read_text("ascii", "replace")


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidKek(
            f"cannot use the key-encryption key in {path}: {error.strerror or error}. Make the folder writable, or set "
            "TURNLOG_KEK"
        ) from error


def _bound(key_id: str, tenant: str, user: str) -> bytes:
    return "\0".join((key_id, tenant, user)).encode()
