"""Derives the secrets of a server: an Ed25519 key that signs tokens, a pepper for the digests of API keys, and a key
that signs events about access rights.

All are derived from TURNLOG_API_SECRET, so that all processes with this setting have the same secrets, or from a file
in the data folder.
"""

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from turnlog.agent.private_files import made_once
from turnlog.agent.settings import MIN_SECRET_CHARS, InvalidSetting, Settings

FILE = "api-secret"
ALGORITHM = "EdDSA"


@dataclass(frozen=True, slots=True)
class Secret:
    """The secrets for tokens, API keys and events. kid: a fingerprint of the public key. pepper, events: 32 bytes
    each."""

    signing: Ed25519PrivateKey
    kid: str
    pepper: bytes
    events: bytes

    @property
    def jwks(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the public key as a JSON Web Key Set (RFC 7517)."""
        from jwt.algorithms import OKPAlgorithm  # loads slowly, and a projector needs only `events`

        public = OKPAlgorithm.to_jwk(self.signing.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": self.kid, "alg": ALGORITHM, "use": "sig"}]}


def secret_of(settings: Settings) -> Secret:
    """Returns the secrets derived from TURNLOG_API_SECRET or, if it is not set, from a file in the data folder. The
    file is created if it does not exist.

    Raises InvalidSetting.
    """
    if settings.api_secret is not None:
        return _derived(settings.api_secret.get_secret_value())
    path = settings.home.expanduser() / FILE
    try:
        text = made_once(path, lambda: secrets.token_urlsafe(32))
    except (OSError, ValueError) as error:
        raise InvalidSetting(
            f"cannot use {path}: {error}. Make the folder writable, or set TURNLOG_API_SECRET"
        ) from error
    if len(text) < MIN_SECRET_CHARS:
        raise InvalidSetting(f"{path} holds no secret; delete it: turnlog makes a new one, and keys and tokens end")
    return _derived(text)


def _derived(text: str) -> Secret:
    signing = Ed25519PrivateKey.from_private_bytes(_part(text, b"turnlog token signing"))
    public = signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    pepper, events = _part(text, b"turnlog api key pepper"), _part(text, b"turnlog event signing")
    return Secret(signing, sha256(public).hexdigest()[:16], pepper, events)


def _part(text: str, purpose: bytes) -> bytes:
    return HKDF(SHA256(), 32, None, purpose).derive(text.encode())
