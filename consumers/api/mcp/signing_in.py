"""Signing in for clients of MCP: an authorization server (OAuth 2.1) over turnlog's own API keys and tokens.

A sign-in is an API key that nobody sees, so `turnlog api-key` lists and revokes it. An access token is a token that
ends with its key; a refresh token is the key, encrypted for its client, and each use replaces the key. Clients and
requests are not stored: their ids hold them, signed.
"""

import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import urlencode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    RegistrationError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl
from pydantic_core import from_json, to_json

from turnlog.agent.access.access import Access
from turnlog.agent.access.api_keys import NewKey, create_key, issue_token_of_key, revoke_key
from turnlog.agent.access.identity import Identity, Unauthenticated
from turnlog.agent.access.tickets import TICKET_S, Tickets
from turnlog.agent.runtime import Runtime
from turnlog.events.subjects import OAUTH_BUCKET

SCOPES = ["read", "write"]
REQUEST_S = 600
SIGN_IN = timedelta(days=90)
ACCESS = timedelta(hours=12)
MAX_CLIENT_BYTES = 1_500
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
NO_REDIRECTS = ("javascript", "data", "vbscript", "file", "blob", "about")
_HOST = re.compile(r"[\w.:\[\]-]+\Z", re.ASCII)  # it goes into the page's policy
KEPT = {"redirect_uris", "token_endpoint_auth_method", "grant_types", "response_types", "scope", "client_name"}


class Code(AuthorizationCode):
    """identity: what the person allowed."""

    identity: Identity


class Refresh(RefreshToken):
    """identity: of the key that the token stands for."""

    identity: Identity


class SignIns(OAuthAuthorizationServerProvider[Code, Refresh, AccessToken]):
    """What the handlers of the MCP library call. runtime: without the limit to a tenant."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._codes = Tickets(runtime.log, runtime.settings.replicas, OAUTH_BUCKET, TICKET_S, "signing in to MCP")

    @property
    def access(self) -> Access:
        return self._runtime.cached(Access)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        content = self._opened("client", client_id)
        if content is None:
            return None
        secret = self._secret_of(client_id) if content["has_secret"] else None
        return OAuthClientInformationFull(client_id=client_id, client_secret=secret, **content["client"])

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """Gives the client an id that holds what it registered. Raises RegistrationError."""
        for uri in client_info.redirect_uris or ():
            if not _may_redirect(uri):
                raise RegistrationError("invalid_redirect_uri", f"{uri} is neither https, loopback nor an app's own")
        client = client_info.model_dump(mode="json", include=KEPT, exclude_none=True)
        if len(to_json(client)) > MAX_CLIENT_BYTES:
            raise RegistrationError("invalid_client_metadata", f"more than {MAX_CLIENT_BYTES:,} bytes")
        has_secret = client_info.client_secret is not None
        content = {"client": client, "has_secret": has_secret, "id": secrets.token_hex(8)}
        client_info.client_id = self._signed("client", content)
        if has_secret:
            client_info.client_secret = self._secret_of(client_info.client_id)

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """Returns the address of the consent page."""
        content = params.model_dump(mode="json") | {"client_id": client.client_id, "until": time.time() + REQUEST_S}
        return "/authorize/consent?" + urlencode({"request": self._signed("request", content)})

    async def requested(self, request: str) -> tuple[OAuthClientInformationFull, AuthorizationParams] | None:
        """Returns who asks for what; None for a request that was forged or is too old."""
        content = self._opened("request", request)
        if content is None or content["until"] < time.time():
            return None
        client = await self.get_client(content["client_id"])
        return None if client is None else (client, AuthorizationParams.model_validate(content))

    async def allow(
        self, client: OAuthClientInformationFull, params: AuthorizationParams, person: Identity, scopes: list[str]
    ) -> str:
        """Returns a code, good once and for a minute. Raises LogUnavailable."""
        longest = (datetime.now(UTC) + SIGN_IN).replace(microsecond=0)
        ends = min(person.expires_at or longest, longest)
        role = "user" if person.role == "admin" else person.role
        ticket = await self._codes.issue(Identity(person.tenant, person.user, role, frozenset(scopes), None, ends))
        # The digest ties what was asked for to this ticket: parts of two codes do not fit together.
        content = params.model_dump(mode="json") | {"client_id": client.client_id, "until": time.time() + TICKET_S}
        return f"{ticket}.{self._signed('code', content | {'ticket': _digest(ticket)})}"

    async def load_authorization_code(self, client: OAuthClientInformationFull, authorization_code: str) -> Code | None:
        """Spends the code, also where the handler refuses what else the client sent."""
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
        return await self._tokens(client, authorization_code.identity, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> Refresh | None:
        try:
            sealed = urlsafe_b64decode(refresh_token.encode())
            key = self._cipher().decrypt(sealed[:12], sealed[12:], client.client_id.encode()).decode()
            identity = await self.access.identify(key)
        except (ValueError, InvalidTag, Unauthenticated):
            return None
        scopes = sorted(identity.scopes)
        return Refresh(token=refresh_token, client_id=client.client_id, scopes=scopes, identity=identity)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: Refresh, scopes: list[str]
    ) -> OAuthToken:
        """Replaces the key: the tokens before end. The sign-in keeps its end."""
        await self.revoke(refresh_token.identity)
        return await self._tokens(client, refresh_token.identity, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return None  # `Access` verifies them

    async def revoke_token(self, token: AccessToken | Refresh) -> None:
        if isinstance(token, Refresh):
            await self.revoke(token.identity)

    async def revoke(self, identity: Identity) -> None:
        """Ends a sign-in, its tokens too."""
        if identity.key_id is not None:
            await revoke_key(self._runtime, identity.tenant, identity.key_id)

    async def _tokens(self, client: OAuthClientInformationFull, by: Identity, scopes: list[str]) -> OAuthToken:
        label = f"MCP: {client.client_name or 'a client'}"[:200]
        key: NewKey = await create_key(self._runtime, by.tenant, by.user, by.role, scopes, label, by=by)
        holder = Identity(by.tenant, by.user, by.role, frozenset(key.scopes), key.id, key.expires_at)
        lifetime = min(ACCESS, holder.expires_at - datetime.now(UTC)) if holder.expires_at else ACCESS
        token = issue_token_of_key(self._runtime.settings, holder, lifetime)
        nonce = secrets.token_bytes(12)
        refresh = nonce + self._cipher().encrypt(nonce, key.key.encode(), client.client_id.encode())
        return OAuthToken(
            access_token=token.token,
            expires_in=int(lifetime.total_seconds()),
            scope=" ".join(sorted(key.scopes)),
            refresh_token=urlsafe_b64encode(refresh).decode(),
        )

    def _secret_of(self, client_id: str) -> str:
        return self.access.digest_of(b"oauth secret\0" + client_id.encode()).hex()

    def _cipher(self) -> AESGCM:
        return AESGCM(self.access.digest_of(b"oauth refresh\0"))

    def _signed(self, purpose: str, content: dict[str, Any]) -> str:
        body = urlsafe_b64encode(to_json(content))
        return f"{body.decode()}~{self._mac(purpose, body)}"

    def _opened(self, purpose: str, text: str) -> dict[str, Any] | None:
        body, _, mac = text.encode(errors="replace").partition(b"~")
        if not compare_digest(mac, self._mac(purpose, body).encode()):
            return None
        content: dict[str, Any] = from_json(urlsafe_b64decode(body))
        return content

    def _mac(self, purpose: str, body: bytes) -> str:
        return self.access.digest_of(f"oauth {purpose}\0".encode() + body).hex()


def _may_redirect(uri: AnyUrl) -> bool:
    if uri.fragment is not None or uri.scheme in NO_REDIRECTS:
        return False
    if uri.scheme in ("http", "https"):
        return bool(_HOST.match(uri.host or "")) and (uri.scheme == "https" or uri.host in LOOPBACK)
    return True


def _digest(ticket: str) -> str:
    return sha256(ticket.encode(errors="replace")).hexdigest()
