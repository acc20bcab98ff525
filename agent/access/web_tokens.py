"""Signs turnlog's own JSON Web Tokens, and verifies tokens of every issuer (RFC 7519, RFC 8725)."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

from turnlog.agent.access.identity import ROLES, Identity, InvalidGrant, TokenExpired, Unauthenticated
from turnlog.agent.access.secret import ALGORITHM, Secret

OWN_ISSUER = AUDIENCE = "turnlog"
REQUIRED = ["iss", "aud", "exp", "nbf", "sub"]
LEEWAY_S = 10
MAX_CHARS = 8_192
MAX_TTL = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Unverified:
    """The unverified content of a token, used only to find the key that verifies it. kid: id of that key, or ""."""

    issuer: str
    kid: str


def peek(token: str) -> Unverified:
    """Reads a token without verifying it. Raises Unauthenticated for a malformed token."""
    if len(token) > MAX_CHARS or not token.isascii():
        raise Unauthenticated(f"a token is at most {MAX_CHARS:,} ASCII characters")
    try:
        decoded = jwt.decode_complete(token, options={"verify_signature": False})
    except jwt.PyJWTError:
        raise Unauthenticated(
            "the credential is neither a token nor an API key; `turnlog token --user NAME` prints a token"
        ) from None
    return Unverified(str(decoded["payload"].get("iss", "")), decoded["header"].get("kid", ""))


def verified(
    token: str, key: Any, algorithms: Sequence[str], issuer: str, audience: str | Sequence[str]
) -> Mapping[str, Any]:
    """Returns the claims of a token after verifying it. All claims of REQUIRED are present, with the types of RFC 7519,
    4.1. algorithms: those with which this issuer may sign. Raises Unauthenticated, TokenExpired."""
    options: Any = {"require": REQUIRED, "enforce_minimum_key_length": True}
    try:
        claims = jwt.decode(
            token, key, algorithms=algorithms, issuer=issuer, audience=audience, leeway=LEEWAY_S, options=options
        )
    except jwt.ExpiredSignatureError:
        raise TokenExpired("the token has expired; get a new one") from None
    except (jwt.PyJWTError, OverflowError, TypeError, ValueError) as error:
        raise Unauthenticated(f"the token is refused: {error}") from None
    for name in ("exp", "nbf", "iat"):  # PyJWT accepts texts and booleans as numbers
        if name in claims and (isinstance(claims[name], bool) or not isinstance(claims[name], int | float)):
            raise wrong_type(name, "a number of seconds")
    return claims


def text_claim(claims: Mapping[str, Any], name: str) -> str:
    """Returns a claim that must be a text. Raises Unauthenticated for one that is missing or has another type."""
    claim = claims.get(name)
    if not isinstance(claim, str):
        raise wrong_type(name, "a text")
    return claim


def wrong_type(name: str, wanted: str) -> Unauthenticated:
    return Unauthenticated(f"the token is refused: its claim {name[:80]!r} is not {wanted}")


def expiry(claims: Mapping[str, Any]) -> datetime:
    """Returns when the token expires. Raises Unauthenticated for a time beyond the calendar."""
    try:
        return datetime.fromtimestamp(float(claims["exp"]), UTC)
    except (ValueError, OverflowError, OSError):
        raise Unauthenticated("the token is refused: its expiry is not a valid time") from None


class OwnIssuer:
    """Signs tokens and verifies them."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._public = secret.signing.public_key()

    def issue(self, identity: Identity, ttl: timedelta, audience: str = AUDIENCE) -> str:
        """Returns a signed token for an identity, valid for `ttl`. Raises InvalidGrant."""
        if not timedelta(0) < ttl <= MAX_TTL:
            raise InvalidGrant(f"a token is valid for at most {MAX_TTL.days} days; make an API key for longer")
        now = datetime.now(UTC)
        claims = {
            "iss": OWN_ISSUER,
            "aud": audience,
            "sub": identity.user,
            "tenant": identity.tenant,
            "role": identity.role,
            "scope": " ".join(sorted(identity.scopes)),
            "iat": now,
            "nbf": now,
            "exp": now + ttl,
            "jti": secrets.token_hex(16),
        }
        if identity.key_id is not None:
            claims["key"] = identity.key_id
        return jwt.encode(claims, self._secret.signing, ALGORITHM, {"kid": self._secret.kid})

    def verify(self, token: str, resource: str | None = None) -> Identity:
        """Returns the identity that the token names. resource: an address; tokens issued for it alone are accepted too
        (RFC 8707). Raises Unauthenticated, TokenExpired."""
        audiences = [AUDIENCE] if resource is None else [AUDIENCE, resource]
        claims = verified(token, self._public, [ALGORITHM], OWN_ISSUER, audiences)
        tenant, scopes = text_claim(claims, "tenant"), frozenset(text_claim(claims, "scope").split())
        role = next((role for role in ROLES if role == claims.get("role")), None)
        if role is None:
            raise wrong_type("role", f"one of {', '.join(ROLES)}")
        key_id = text_claim(claims, "key") if "key" in claims else None
        return Identity(tenant, text_claim(claims, "sub"), role, scopes, key_id, expiry(claims))
