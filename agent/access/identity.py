"""Defines the identity of a caller, which a verified credential proves, and the caller's rights."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Literal, get_args

from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import check_id, check_place

Role = Literal["user", "vip", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
ACT_AS_USER, OPERATE, KEYS = "act-as-user", "operate", "keys"
SCOPES: Mapping[str, str] = MappingProxyType(
    {
        "read": "read the user's threads, contexts, memories, entities, receipts and usage",
        "write": "append turns, and change threads, memories, entities and preferences",
        "ask": "have a model answer",
        "erase": "export and erase the user's data",
        ACT_AS_USER: "name another user of the tenant in each request; only an API key can have it",
        OPERATE: "lag, dead letters, rebuilds, metrics, limits and other users' usage; only the role admin can have it",
        KEYS: "make, list and revoke API keys with at most its own rights; only the role admin can have it",
    }
)
OWN_DATA = frozenset({"read", "write", "ask", "erase"})


class Unauthenticated(TurnlogError):
    """There is no credential, or one that is malformed, forged, revoked or meant for another service."""

    code = "unauthenticated"


class TokenExpired(Unauthenticated):
    """The token, key or ticket has expired; get a new one."""

    code = "token-expired"


class IssuerUnavailable(TurnlogError):
    """The public keys of the token's issuer cannot be fetched now, so the token can be neither accepted nor refused."""

    code = "issuer-unavailable"


class Forbidden(TurnlogError):
    """The credential is valid, but lacks the scope or role that the message names."""

    code = "forbidden"


class InvalidGrant(TurnlogError):
    """A token or key cannot be made with this role, scope or lifetime."""

    code = "invalid-grant"


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller, as verified by a credential. key_id: id of the API key, also for a token made from a key; otherwise
    None. expires_at: None means never. zone: the user's time zone, if a token names it."""

    tenant: str
    user: str
    role: Role
    scopes: frozenset[str]
    key_id: str | None = None
    expires_at: datetime | None = None
    zone: str | None = None

    def require(self, scope: str, role: Role | None = None) -> None:
        """Checks that the identity has a scope. role: the identity must also have exactly this role. Raises Forbidden,
        which names what is missing."""
        if scope not in self.scopes:
            raise Forbidden(f"this needs the scope {scope!r}, and the credential of {self.user!r} does not have it")
        if role is not None and self.role != role:
            raise Forbidden(f"this needs the role {role!r}, and {self.user!r} has {self.role!r}")

    def acting_as(self, user: str) -> "Identity":
        """Returns the identity that acts for a user of its tenant; if that is another user, it has no role or scope for
        other users' data. Raises Forbidden, InvalidToken."""
        if user == self.user:
            return self
        if self.key_id is None or ACT_AS_USER not in self.scopes:
            raise Forbidden(f"only an API key with the scope {ACT_AS_USER!r} may name another user")
        check_id("user", user)
        return replace(
            self,
            user=user,
            role="user" if self.role == "admin" else self.role,
            scopes=self.scopes & OWN_DATA,
            zone=None,
        )

    def check_grants(self, grant: "Identity") -> None:
        """Refuses a grant with more rights than this identity, or a later expiry. Raises Forbidden, InvalidToken."""
        holder = self.acting_as(grant.user)
        if grant.tenant != self.tenant:
            raise Forbidden("a credential cannot be made for another tenant")
        if ROLES.index(grant.role) > ROLES.index(holder.role):
            raise Forbidden(f"the role {grant.role!r} is more than yours for this user, {holder.role!r}")
        if missing := sorted(grant.scopes - holder.scopes):
            raise Forbidden(f"you cannot give the scope {missing[0]!r} for this user: you do not have it yourself")
        if self.expires_at is not None and (grant.expires_at is None or grant.expires_at > self.expires_at):
            raise Forbidden(
                f"your own credential expires at {self.expires_at:%F %T} UTC; yours cannot grant a later expiry"
            )


def granted(
    tenant: str, user: str, role: str, scopes: Collection[str] | None, expires_at: datetime | None, *, key: bool
) -> Identity:
    """Returns the identity for a new token or, with `key`, for an API key. scopes: None means all that a token of the
    role can have.

    Raises InvalidGrant, InvalidToken.
    """
    check_place(tenant, user=user)
    if role not in ROLES:
        raise InvalidGrant(f"there is no role {role!r}; there are {', '.join(ROLES)}")
    wanted = scopes_of(role) if scopes is None else frozenset(scopes)
    if unknown := sorted(wanted - SCOPES.keys()):
        raise InvalidGrant(f"there is no scope {unknown[0]!r}; there are {', '.join(SCOPES)}")
    if not wanted:
        raise InvalidGrant("give at least one scope; without any the credential could do nothing")
    if refused := sorted(wanted - scopes_of(role) - ({ACT_AS_USER} if key else set())):
        raise InvalidGrant(f"scope {refused[0]!r}: {SCOPES[refused[0]].partition('; ')[2]}")
    return Identity(tenant, user, role, wanted, None, expires_at)


def scopes_of(role: Role) -> frozenset[str]:
    """Returns all scopes that a token of this role can have."""
    return OWN_DATA | {OPERATE, KEYS} if role == "admin" else OWN_DATA
