"""Access: from the credential of a request to an Identity, and tickets."""

import hmac
from datetime import UTC, datetime
from typing import Any

from cachetools import LRUCache

from turnlog.agent.access.identity import Identity, TokenExpired, Unauthenticated
from turnlog.agent.access.issuer import outside_issuer
from turnlog.agent.access.keys import PREFIX, identified, is_revoked
from turnlog.agent.access.secret import secret_of
from turnlog.agent.access.tickets import Tickets
from turnlog.agent.access.tokens import OWN_ISSUER, OwnIssuer, peek
from turnlog.agent.runtime import Runtime

REMEMBERED = 1_000


class Access:
    """One for each runtime: `runtime.kept(Access)`. Raises InvalidSetting when there is no usable secret."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._secret = secret_of(runtime.settings)
        self._own = OwnIssuer(self._secret)
        # Nothing but time ends a token of turnlog's own, and a client sends the same one with every request.
        self._verified: LRUCache[str, Identity] = LRUCache(REMEMBERED)
        self._outside = outside_issuer(runtime.settings)
        self._tickets = Tickets(runtime.log, runtime.settings.replicas)

    @property
    def jwks(self) -> dict[str, list[dict[str, Any]]]:
        """Public keys of turnlog's own issuer, for other programs that verify its tokens."""
        return self._secret.jwks

    async def identify(self, credential: str, act_as: str | None = None) -> Identity:
        """credential: a token or an API key, as after `Bearer `. act_as: another user that the request names.

        An identity that acts as another user has no role or scope over others' data.

        Raises Unauthenticated, TokenExpired, Forbidden, InvalidToken, IssuerUnavailable.
        """
        identity = await self._identity(credential)
        return identity if act_as is None else identity.acting_as(act_as)

    def signature_of(self, document: bytes) -> str:
        """Shows that a document which a client sends back is unchanged; equal in every process with the same secret."""
        return self.digest_of(b"document\0" + document).hex()

    def digest_of(self, what: bytes) -> bytes:
        """32 bytes that only a process with the same secret can make. what: begins with its purpose."""
        return hmac.digest(self._secret.pepper, what, "sha256")

    async def issue_ticket(self, identity: Identity) -> str:
        """A ticket that opens one connection within TICKET_S. Raises LogUnavailable."""
        return await self._tickets.issue(identity)

    async def redeem(self, ticket: str) -> Identity:
        """The identity that got the ticket; once. Raises Unauthenticated, TokenExpired, LogUnavailable."""
        identity = await self._tickets.redeem(ticket)
        await self.check(identity)
        return identity

    async def check(self, identity: Identity) -> None:
        """Whether a credential that was verified before still holds: for what is open for long.

        Raises Unauthenticated, TokenExpired.
        """
        if identity.expires_at is not None and identity.expires_at <= datetime.now(UTC):
            raise TokenExpired("the credential has expired; get a new one")
        if identity.key_id and await is_revoked(self._runtime.pool, identity.tenant, identity.key_id):
            raise Unauthenticated(f"API key {identity.key_id} was revoked")

    async def _identity(self, credential: str) -> Identity:
        if not credential:
            raise Unauthenticated("there is no credential; `turnlog token --user U` prints one")
        if credential.startswith(PREFIX):
            return await identified(self._runtime.pool, credential, self._secret.pepper)
        known = self._verified.get(credential)
        if known is not None and known.expires_at and known.expires_at > datetime.now(UTC):
            return known
        found = peek(credential)
        if found.issuer == OWN_ISSUER:
            self._verified[credential] = identity = self._own.verify(credential)
            return identity
        if self._outside is not None and found.issuer == self._outside.name:
            return await self._outside.verify(credential, found.kid)
        raise Unauthenticated(f"no tokens are accepted from issuer {found.issuer[:80]!r}")
