"""Lets MCP clients sign in: an OAuth 2.1 authorization server that uses turnlog's API keys and tokens.

Each sign-in creates an API key, so `turnlog api-key` can list and revoke it. The key's secret is stored nowhere on the
server; the client's refresh tokens contain it, encrypted. An access token is valid only for the address of MCP and
only while the key is valid. A refresh token works once: the database counts the refreshes of each key, and one SQL
statement decides which of two simultaneous refreshes is first. Registrations of clients and authorization requests are
not stored either: the ids that clients and forms send back contain them, signed.
"""

import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Literal
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from mcp.server.auth.provider import AuthorizationCode, RefreshToken, TokenError
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json

from turnlog.agent.access.access import Access
from turnlog.agent.access.api_keys import create_key, issue_token_of_key, revoke_key
from turnlog.agent.access.identity import Identity, Unauthenticated
from turnlog.agent.access.presented_keys import spend_refresh
from turnlog.agent.access.tickets import TICKET_S, Tickets
from turnlog.agent.runtime import Runtime
from turnlog.events.subjects import OAUTH_BUCKET

SCOPES = ["read", "write"]
REQUEST_S = 600
SIGN_IN = timedelta(days=90)
ACCESS = timedelta(hours=1)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
NO_REDIRECTS = ("", "javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source", "intent")
_HOST = re.compile(
    r"[\w.-]+|::1", re.ASCII
)  # restricted, because it becomes part of the page's content security policy
_URI = re.compile(r"[!-~]{1,500}")  # visible ASCII


class Client(BaseModel):
    """A client's registration (RFC 7591). Every client is public, and uses PKCE."""

    redirect_uris: list[str] = Field(min_length=1, max_length=10)
    client_name: str | None = Field(None, max_length=100)

    def may_return_to(self, uri: str) -> bool:
        """Returns whether this exact address was registered. The port of a loopback address may differ (RFC 8252,
        7.3).
        """
        return uri in self.redirect_uris or any(
            _any_port(uri) == _any_port(known) is not None for known in self.redirect_uris
        )


class Request(BaseModel):
    """An authorization request. resource: the address of MCP, for which the tokens are valid. until: in seconds since
    1970.
    """

    client_id: str
    redirect_uri: str
    redirect_uri_provided_explicitly: bool
    code_challenge: str
    scopes: list[str]
    state: str | None
    resource: str
    until: float


class Code(AuthorizationCode):
    """An authorization code. identity: the rights that the person granted."""

    identity: Identity
    resource: str


class Refresh(RefreshToken):
    """A refresh token. key: the secret of the sign-in's API key. used: the number of refreshes before this token was
    issued.
    """

    key: str
    used: int
    identity: Identity
    resource: str


class _Sealed(BaseModel):
    key: str
    used: int
    resource: str


Purpose = Literal["client", "request", "code"]


class SignIns:
    """The provider for the MCP library's token handler. runtime: a runtime that is not limited to a tenant."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._codes = Tickets(runtime.log, runtime.settings.replicas, OAUTH_BUCKET, TICKET_S, "signing in to MCP")

    @property
    def access(self) -> Access:
        return self._runtime.cached(Access)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        client = self.client(client_id)
        if client is None:
            return None
        content = {"client_id": client_id, "client_name": client.client_name, "token_endpoint_auth_method": "none"}
        return OAuthClientInformationFull.model_validate(content)

    def client(self, client_id: str) -> Client | None:
        content = self._opened("client", client_id)
        return None if content is None else Client.model_validate(content)

    def register(self, client: Client) -> str:
        """Returns an id that contains the client's registration."""
        return self._signed("client", client.model_dump() | {"id": secrets.token_hex(8)})

    def ask(self, request: Request) -> str:
        """Returns the request as signed text, which the form of the consent page carries."""
        return self._signed("request", request.model_dump())

    def asked(self, text: str) -> Request | None:
        """Returns the request that the form carries; None if it was forged or is too old."""
        content = self._opened("request", text)
        request = None if content is None else Request.model_validate(content)
        return None if request is None or request.until < time.time() else request

    async def allow(self, request: Request, person: Identity, scopes: list[str]) -> str:
        """Returns a single-use code, valid for a minute. Raises LogUnavailable."""
        longest = (datetime.now(UTC) + SIGN_IN).replace(microsecond=0)
        ends = min(person.expires_at or longest, longest)
        role = "user" if person.role == "admin" else person.role
        ticket = await self._codes.issue(Identity(person.tenant, person.user, role, frozenset(scopes), None, ends))
        # The digest binds the request to this ticket, so that parts of two codes cannot be combined.
        content = request.model_dump() | {"until": time.time() + TICKET_S, "ticket": _digest(ticket)}
        return f"{ticket}.{self._signed('code', content)}"

    async def load_authorization_code(self, client: OAuthClientInformationFull, authorization_code: str) -> Code | None:
        """Returns the code, or None if it is not valid. The code is then used up, even if the handler refuses the
        request for another reason."""
        ticket, _, signed = authorization_code.partition(".")
        content = self._opened("code", signed)
        if content is None or not compare_digest(content["ticket"], _digest(ticket)):
            return None
        try:
            identity = await self._codes.redeem(ticket)
        except Unauthenticated:
            return None
        asked = content | {"code": ticket, "expires_at": content["until"], "subject": identity.user}
        return Code.model_validate(asked | {"identity": identity, "scopes": sorted(identity.scopes)})

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: Code
    ) -> OAuthToken:
        """Creates the API key of the sign-in, and returns its tokens."""
        by = authorization_code.identity
        label = f"MCP: {client.client_name or 'a client'}"
        key = await create_key(self._runtime, by.tenant, by.user, by.role, sorted(by.scopes), label, by=by)
        holder = Identity(by.tenant, by.user, by.role, by.scopes, key.id, key.expires_at)
        return self._tokens(
            client.client_id, holder, _Sealed(key=key.key, used=0, resource=authorization_code.resource)
        )

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> Refresh | None:
        try:
            token = urlsafe_b64decode(refresh_token.encode())
            content = self._cipher().decrypt(token[:12], token[12:], client.client_id.encode())
            sealed = _Sealed.model_validate_json(content)
            identity = await self.access.identify(sealed.key)
        except (ValueError, InvalidTag, Unauthenticated):
            return None
        more = {"token": refresh_token, "client_id": client.client_id, "scopes": sorted(identity.scopes)}
        return Refresh.model_validate(sealed.model_dump() | more | {"identity": identity})

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: Refresh, scopes: list[str]
    ) -> OAuthToken:
        """Returns new tokens, once per refresh token; the sign-in still expires at the same time. If the token was used
        before, more than a minute ago, this ends the sign-in, because the token may be stolen (OAuth 2.1, 4.3.1)."""
        holder, used = refresh_token.identity, refresh_token.used
        spent = await spend_refresh(self._runtime.pool, holder, used)
        if spent == "replayed":
            await self.revoke(holder)
        if spent != "spent":
            raise TokenError("invalid_grant", "the refresh token was used before")
        sealed = _Sealed(key=refresh_token.key, used=used + 1, resource=refresh_token.resource)
        return self._tokens(client.client_id, replace(holder, scopes=frozenset(scopes)), sealed)

    async def revoke(self, identity: Identity) -> None:
        """Ends a sign-in and its tokens."""
        if identity.key_id is not None:
            await revoke_key(self._runtime, identity.tenant, identity.key_id)

    def _tokens(self, client_id: str, holder: Identity, sealed: _Sealed) -> OAuthToken:
        lifetime = min(ACCESS, holder.expires_at - datetime.now(UTC)) if holder.expires_at else ACCESS
        token = issue_token_of_key(self._runtime.settings, holder, lifetime, sealed.resource)
        nonce = secrets.token_bytes(12)
        refresh = nonce + self._cipher().encrypt(nonce, sealed.model_dump_json().encode(), client_id.encode())
        return OAuthToken(
            access_token=token,
            expires_in=int(lifetime.total_seconds()),
            scope=" ".join(sorted(holder.scopes)),
            refresh_token=urlsafe_b64encode(refresh).decode(),
        )

    def _cipher(self) -> AESGCM:
        return AESGCM(self.access.digest_of(b"oauth refresh\0"))

    def _signed(self, purpose: Purpose, content: dict[str, Any]) -> str:
        body = urlsafe_b64encode(to_json(content))
        return f"{body.decode()}~{self._mac(purpose, body)}"

    def _opened(self, purpose: Purpose, text: str) -> dict[str, Any] | None:
        body, _, mac = text.encode(errors="replace").partition(b"~")
        if not compare_digest(mac, self._mac(purpose, body).encode()):
            return None
        content: dict[str, Any] = from_json(urlsafe_b64decode(body))
        return content

    def _mac(self, purpose: Purpose, body: bytes) -> str:
        return self.access.digest_of(f"oauth {purpose}\0".encode() + body).hex()


def may_register(uri: str) -> bool:
    """Returns whether codes may be sent to an address: https, loopback or an application's own scheme."""
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    if not _URI.fullmatch(uri) or "#" in uri or parts.username is not None or parts.scheme in NO_REDIRECTS:
        return False
    if parts.scheme in ("http", "https"):
        return bool(_HOST.fullmatch(host)) and (parts.scheme == "https" or host in LOOPBACK)
    return True


def _any_port(uri: str) -> str | None:
    """Returns a loopback address without its port; None for another address."""
    match = re.fullmatch(r"(http://(?:localhost|127\.0\.0\.1|\[::1\]))(?::\d{1,5})?([/?].*|)", uri)
    return match and f"{match[1]}{match[2]}"


def _digest(ticket: str) -> str:
    return sha256(ticket.encode(errors="replace")).hexdigest()
