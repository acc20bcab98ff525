"""Tokens of an external issuer, such as a company's identity provider, verified with the public keys that it serves."""

import asyncio
import ipaddress
import logging
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jwt
from pydantic_core import from_json

from turnlog.agent.access.identity import ROLES, Identity, IssuerUnavailable, Role, Unauthenticated, scopes_of
from turnlog.agent.access.tokens import OWN_ISSUER, expiry, text_claim, verified, wrong_type
from turnlog.agent.settings import InvalidSetting, Settings
from turnlog.events.errors import InvalidToken
from turnlog.events.subjects import check_place

logger = logging.getLogger("turnlog.access")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
# Fetched keys are fetched again after FRESH_S, used for TRUSTED_S at most, and looked for at most once in AGAIN_S.
FRESH_S, TRUSTED_S, AGAIN_S = 600.0, 3600.0, 60.0
FETCH_S = 5.0
MAX_BYTES = 256 * 1024


class KeySet:
    """The public keys at a JWKS URL, by key id."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._lock = asyncio.Lock()

    async def key(self, kid: str) -> jwt.PyJWK:
        """Raises Unauthenticated for a key that the issuer does not have, IssuerUnavailable."""
        if self._is_wanting(kid):
            async with self._lock:
                if self._is_wanting(kid):
                    await self._fetch()
        if time.monotonic() - self._fetched_at > TRUSTED_S:
            raise IssuerUnavailable("the keys of the token's issuer cannot be fetched now; try again in a minute")
        if kid not in self._keys:
            raise Unauthenticated("the token is refused: its issuer has no key with this id")
        return self._keys[kid]

    def _is_wanting(self, kid: str) -> bool:
        now = time.monotonic()
        return (kid not in self._keys or now - self._fetched_at > FRESH_S) and now - self._tried_at > AGAIN_S

    async def _fetch(self) -> None:
        self._tried_at = time.monotonic()
        try:
            async with asyncio.timeout(FETCH_S):
                self._keys = _keys(await self._body())
            self._fetched_at = time.monotonic()
        except (httpx2.HTTPError, TimeoutError, ValueError, jwt.PyJWTError) as error:
            logger.warning("the keys at TURNLOG_JWT_JWKS_URL cannot be fetched: %r", error)

    async def _body(self) -> bytes:
        """Raises ValueError for a redirection, an error or more than MAX_BYTES."""
        found = b""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with (
            httpx2.AsyncClient(timeout=FETCH_S) as client,
            client.stream("GET", self._url, headers=headers) as got,
        ):
            if got.status_code != 200:
                raise ValueError(f"status {got.status_code}")
            async for piece in got.aiter_raw():
                found += piece
                if len(found) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES:,} bytes")
        return found


def _keys(body: bytes) -> dict[str, jwt.PyJWK]:
    """Only public keys for signatures: a symmetric key has an algorithm that is not allowed."""
    document = from_json(body)
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise ValueError("no JSON Web Key Set")
    return {
        key.key_id: key
        for key in jwt.PyJWKSet(keys)
        if isinstance(key.key_id, str) and key.public_key_use in (None, "sig") and key.algorithm_name in ALGORITHMS
    }


class OutsideIssuer:
    """One issuer that the settings name, with the audience that its tokens for turnlog have."""

    def __init__(self, issuer: str, audience: str, keys: KeySet, settings: Settings) -> None:
        self.name, self._audience, self._keys, self._settings = issuer, audience, keys, settings

    async def verify(self, token: str, kid: str) -> Identity:
        """Raises Unauthenticated, TokenExpired, IssuerUnavailable."""
        claims = verified(token, await self._keys.key(kid), ALGORITHMS, self.name, self._audience)
        tenant_claim = self._settings.jwt_tenant_claim
        tenant = self._settings.tenant if tenant_claim is None else text_claim(claims, tenant_claim)
        user = text_claim(claims, "sub")
        try:
            check_place(tenant, user=user)
        except InvalidToken as error:
            raise Unauthenticated(f"the token is refused: {error}") from None
        role = _role(claims, self._settings.jwt_role_claim)
        zone = claims.get("zoneinfo")  # OpenID Connect Core 1.0, 5.1
        named = zone if isinstance(zone, str) else None
        return Identity(tenant, user, role, _scopes(claims, role), None, expiry(claims), named)


def outside_issuer(settings: Settings) -> OutsideIssuer | None:
    """None if the settings name none. Raises InvalidSetting."""
    issuer, audience, url = settings.jwt_issuer, settings.jwt_audience, settings.jwt_jwks_url
    if issuer is None and audience is None and url is None:
        return None
    if issuer is None or audience is None or url is None or issuer == OWN_ISSUER:
        raise InvalidSetting(
            f"set TURNLOG_JWT_ISSUER (not {OWN_ISSUER!r}), TURNLOG_JWT_AUDIENCE and TURNLOG_JWT_JWKS_URL together"
        )
    if not _is_safe(url):
        raise InvalidSetting("TURNLOG_JWT_JWKS_URL must begin with https://, or http:// on this machine")
    return OutsideIssuer(issuer, audience, KeySet(url), settings)


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return bool(parts.hostname)
    try:
        return parts.scheme == "http" and ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.scheme == "http" and parts.hostname == "localhost"


def _role(claims: Mapping[str, Any], name: str) -> Role:
    """Returns the highest role that the claim has, a text or a list of texts; "user" without the claim, and where it
    has none that turnlog knows. Raises Unauthenticated."""
    names = _texts(claims, name) if name in claims else []
    return max((role for role in ROLES if role in names), key=ROLES.index, default="user")


def _scopes(claims: Mapping[str, Any], role: Role) -> frozenset[str]:
    """Returns the scopes of turnlog in `scope`, a text (RFC 8693, 4.2), or else in `scp`, which some issuers send as a
    text and some as a list. A token without both has all of its role. Raises Unauthenticated."""
    if "scope" in claims:
        named = text_claim(claims, "scope").split()
    elif "scp" in claims:
        named = [one for text in _texts(claims, "scp") for one in text.split()]
    else:
        return scopes_of(role)
    return scopes_of(role) & frozenset(named)


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    found = [claims[name]] if isinstance(claims[name], str) else claims[name]
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise wrong_type(name, "a text or a list of texts")
    return found
