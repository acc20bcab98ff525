"""Verifies the credential of a request, which gives an Identity, and issues tickets. Tokens of an external issuer, such
as a company's identity provider, are verified with the public keys that it serves.
"""

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jwt
from cachetools import LRUCache
from pydantic_core import from_json

from turnlog.agent.access.identity import (
    ROLES,
    Identity,
    IssuerUnavailable,
    Role,
    TokenExpired,
    Unauthenticated,
    scopes_of,
)
from turnlog.agent.access.presented_keys import PREFIX, identified, is_revoked
from turnlog.agent.access.secret import secret_of
from turnlog.agent.access.tickets import Tickets, sign_in_tickets
from turnlog.agent.access.web_tokens import OWN_ISSUER, OwnIssuer, expiry, peek, text_claim, verified, wrong_type
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import InvalidSetting, Settings
from turnlog.events.errors import InvalidToken
from turnlog.events.subjects import check_place

logger = logging.getLogger("turnlog.access")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
# Fetched keys are fetched again after FRESH_S, used for at most TRUSTED_S, and requested at most once per AGAIN_S.
FRESH_S, TRUSTED_S, AGAIN_S = 600.0, 3600.0, 60.0
FETCH_S = 5.0
MAX_BYTES = 256 * 1024


class KeySet:
    """The public keys at a JWKS URL, by key id."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._lock = asyncio.Lock()

    async def key(self, kid: str) -> jwt.PyJWK:
        """Returns the issuer's key with this id. Raises Unauthenticated for a key that the issuer does not have,
        IssuerUnavailable."""
        if self._is_wanting(kid):
            async with self._lock:
                if self._is_wanting(kid):
                    await self._fetch()
        if self._clock() - self._fetched_at > TRUSTED_S:
            raise IssuerUnavailable("the keys of the token's issuer cannot be fetched now; try again in a minute")
        if kid not in self._keys:
            raise Unauthenticated("the token is refused: its issuer has no key with this id")
        return self._keys[kid]

    def _is_wanting(self, kid: str) -> bool:
        now = self._clock()
        return (kid not in self._keys or now - self._fetched_at > FRESH_S) and now - self._tried_at > AGAIN_S

    async def _fetch(self) -> None:
        self._tried_at = self._clock()
        try:
            async with asyncio.timeout(FETCH_S):
                self._keys = _keys(await self._body())
            self._fetched_at = self._clock()
        except (httpx2.HTTPError, TimeoutError, ValueError, jwt.PyJWTError) as error:
            logger.warning("the keys at TURNLOG_JWT_JWKS_URL cannot be fetched: %r", error)

    async def _body(self) -> bytes:
        """Returns the body of the response. Raises ValueError for a redirection, an error or more than MAX_BYTES."""
        body = b""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with (
            httpx2.AsyncClient(timeout=FETCH_S) as client,
            client.stream("GET", self._url, headers=headers) as got,
        ):
            if got.status_code != 200:
                raise ValueError(f"status {got.status_code}")
            async for piece in got.aiter_raw():
                body += piece
                if len(body) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES:,} bytes")
        return body


def _keys(body: bytes) -> dict[str, jwt.PyJWK]:
    """Returns only public keys for signatures, because algorithms of symmetric keys are not allowed."""
    document = from_json(body)
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise ValueError("not a JSON Web Key Set")
    return {
        key.key_id: key
        for key in jwt.PyJWKSet(keys)
        if isinstance(key.key_id, str) and key.public_key_use in (None, "sig") and key.algorithm_name in ALGORITHMS
    }


class OutsideIssuer:
    """Verifies tokens of the external issuer that the settings name. audience: that of its tokens for turnlog."""

    def __init__(self, issuer: str, audience: str, keys: KeySet, settings: Settings) -> None:
        self.name, self._audience, self._keys, self._settings = issuer, audience, keys, settings

    async def verify(self, token: str, kid: str) -> Identity:
        """Returns the identity that a token proves. kid: id of the key that signed it. Raises Unauthenticated,
        TokenExpired, IssuerUnavailable."""
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
    """Returns the external issuer; None if the settings name none. Raises InvalidSetting."""
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
    """Returns the highest role in the claim, which is a text or a list of texts; "user" if the claim is missing or
    names no role of turnlog. Raises Unauthenticated."""
    names = _texts(claims, name) if name in claims else []
    return max((role for role in ROLES if role in names), key=ROLES.index, default="user")


def _scopes(claims: Mapping[str, Any], role: Role) -> frozenset[str]:
    """Returns turnlog's scopes in `scope`, a text (RFC 8693, 4.2), or else in `scp`, which some issuers send as a text
    and some as a list. A token with neither has all scopes of its role. Raises Unauthenticated."""
    if "scope" in claims:
        named = text_claim(claims, "scope").split()
    elif "scp" in claims:
        named = [scope for text in _texts(claims, "scp") for scope in text.split()]
    else:
        return scopes_of(role)
    return scopes_of(role) & frozenset(named)


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    texts = [claims[name]] if isinstance(claims[name], str) else claims[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong_type(name, "a text or a list of texts")
    return texts


REMEMBERED = 1_000


class Access:
    """Verifies credentials and issues tickets. Each runtime has one instance: `runtime.cached(Access)`. Raises
    InvalidSetting if there is no usable secret, or if the external issuer is configured incompletely."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._secret = secret_of(runtime.settings)
        self._own = OwnIssuer(self._secret)
        # turnlog's own tokens, which are verified only once: they cannot be revoked, and a client sends the same token
        # with every request.
        self._verified: LRUCache[tuple[str, str | None], Identity] = LRUCache(REMEMBERED)
        self._outside = outside_issuer(runtime.settings)
        self._tickets = Tickets(runtime.log, runtime.settings.replicas)
        self.sign_in_tickets = sign_in_tickets(runtime.log, runtime.settings.replicas)

    @property
    def jwks(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the public keys of turnlog's own issuer, for other programs that verify its tokens."""
        return self._secret.jwks

    async def identify(self, credential: str, act_as: str | None = None, resource: str | None = None) -> Identity:
        """Returns the identity that a credential proves. credential: a token or an API key, without `Bearer `. act_as:
        another user that the request names. resource: the address of the request, if tokens are issued for that address
        alone.

        An identity that acts as another user has no role or scope for other users' data.

        Raises Unauthenticated, TokenExpired, Forbidden, InvalidToken, IssuerUnavailable.
        """
        identity = await self._identity(credential, resource)
        return identity if act_as is None else identity.acting_as(act_as)

    def signature_of(self, document: bytes) -> str:
        """Returns a signature of a document. It shows later that a client sends the document back unchanged. All
        processes with the same secret return the same signature.
        """
        return self.digest_of(b"document\0" + document).hex()

    def digest_of(self, what: bytes) -> bytes:
        """Returns 32 bytes that only a process with the same secret can compute. what: the bytes to digest, which must
        begin with their purpose."""
        return hmac.digest(self._secret.pepper, what, "sha256")

    async def issue_ticket(self, identity: Identity) -> str:
        """Returns a ticket that opens one connection within TICKET_S. Raises LogUnavailable."""
        return await self._tickets.issue(identity)

    async def redeem(self, ticket: str) -> Identity:
        """Returns the identity for which a ticket was issued. A ticket can be redeemed once. Raises Unauthenticated,
        TokenExpired, LogUnavailable."""
        identity = await self._tickets.redeem(ticket)
        await self.check(identity)
        return identity

    async def check(self, identity: Identity) -> None:
        """Re-checks a credential, for long-lived connections.

        Raises Unauthenticated, TokenExpired.
        """
        if identity.expires_at is not None and identity.expires_at <= datetime.now(UTC):
            raise TokenExpired("the credential has expired; get a new one")
        if identity.key_id and await is_revoked(self._runtime.pool, identity.tenant, identity.key_id):
            raise Unauthenticated(f"API key {identity.key_id} was revoked")

    async def _identity(self, credential: str, resource: str | None) -> Identity:
        if not credential:
            raise Unauthenticated("there is no credential; `turnlog token --user U` prints one")
        if credential.startswith(PREFIX):
            return await identified(self._runtime.pool, credential, self._secret.pepper)
        known = self._verified.get((credential, resource))
        if known is not None and known.expires_at and known.expires_at > datetime.now(UTC):
            return await self._with_valid_key(known)
        unverified = peek(credential)
        if unverified.issuer == OWN_ISSUER:
            self._verified[credential, resource] = identity = self._own.verify(credential, resource)
            return await self._with_valid_key(identity)
        if self._outside is not None and unverified.issuer == self._outside.name:
            return await self._outside.verify(credential, unverified.kid)
        raise Unauthenticated(f"no tokens are accepted from issuer {unverified.issuer[:80]!r}")

    async def _with_valid_key(self, identity: Identity) -> Identity:
        """Returns the identity of a token, unless the API key that it was made from is revoked. Raises
        Unauthenticated."""
        if identity.key_id is not None:
            await self.check(identity)
        return identity
