"""Creates, lists and revokes API keys."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from psycopg.rows import class_row

from turnlog.agent.access.access import Access
from turnlog.agent.access.identity import ROLES, Forbidden, Identity, InvalidGrant, Role, granted
from turnlog.agent.access.parked_threads import append_unless_parked
from turnlog.agent.access.presented_keys import digest_of, new_key
from turnlog.agent.access.secret import secret_of
from turnlog.agent.access.web_tokens import OwnIssuer
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.contracts import ApiKeyCreated, ApiKeyRevoked, Event
from turnlog.events.errors import NotFound
from turnlog.events.subjects import access_thread, check_place

SOURCE = "turnlog/access"
READS = ("api_keys",)
MAX_LABEL_CHARS = 200
_LIST = """
SELECT k.id, k.user_id AS user, k.role, k.scopes, k.label, k.created_at, k.expires_at, k.revoked_at, u.used_at
FROM api_keys k LEFT JOIN api_key_uses u ON u.tenant = k.tenant AND u.key_id = k.id
WHERE k.tenant = %s AND (%s::text IS NULL OR k.user_id = %s) ORDER BY k.created_at, k.id"""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new API key. key: the secret, which turnlog does not keep."""

    id: str
    key: str
    user: str
    role: str
    scopes: list[str]
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An API key without its secret. used_at: to the minute; None: never."""

    id: str
    user: str
    role: str
    scopes: list[str]
    label: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewToken:
    token: str
    user: str
    role: str
    scopes: list[str]
    expires_at: datetime | None


def issue_token(
    settings: Settings, tenant: str, user: str, role: str, ttl: timedelta, scopes: Collection[str] | None = None
) -> NewToken:
    """Makes a token for a user. scopes: None means all of the role. Needs no server. Raises InvalidGrant,
    InvalidToken, InvalidSetting."""
    grant = granted(tenant, user, role, scopes, _after(ttl), key=False)
    token = OwnIssuer(secret_of(settings)).issue(grant, ttl)
    return NewToken(token, user, role, sorted(grant.scopes), grant.expires_at)


def issue_token_of_key(settings: Settings, key: Identity, ttl: timedelta, resource: str) -> str:
    """Makes a token with the rights of an API key, valid until it expires or the key is revoked. resource: the only
    address that accepts it. Raises InvalidGrant, InvalidSetting."""
    return OwnIssuer(secret_of(settings)).issue(key, ttl, resource)


async def issue_sign_in_ticket(runtime: Runtime, tenant: str, user: str) -> str:
    """Returns a ticket that signs a user in to the web page as an admin of the tenant, once within ten minutes.
    Raises InvalidToken, LogUnavailable."""
    grant = granted(tenant, user, "admin", None, None, key=False)
    return await runtime.cached(Access).sign_in_tickets.issue(grant)


async def create_key(
    runtime: Runtime,
    tenant: str,
    user: str,
    role: str = "user",
    scopes: Collection[str] | None = None,
    label: str | None = None,
    ttl: timedelta | None = None,
    by: Identity | None = None,
) -> NewKey:
    """Creates a key that works when this returns. scopes: None means all of the role.

    by: who creates it, with at most their own rights; None means the operator of this machine. ttl: None means that the
    key expires with `by`, or never.

    Raises Forbidden, InvalidGrant, InvalidToken, InvalidSetting, ThreadParked, NotProjectedInTime, LogUnavailable.
    """
    if label is not None and len(label) > MAX_LABEL_CHARS:
        raise InvalidGrant(f"a label has at most {MAX_LABEL_CHARS} characters")
    ends = by.expires_at if by is not None else None
    grant = granted(tenant, user, role, scopes, ends if ttl is None else _after(ttl), key=True)
    if by is not None:
        by.check_grants(grant)
    key_id, key = new_key()
    data = ApiKeyCreated(
        key_id=key_id,
        digest=digest_of(key, grant, secret_of(runtime.settings).pepper),
        role=grant.role,
        scopes=tuple(sorted(grant.scopes)),
        label=label,
        expires_at=grant.expires_at,
    )
    await _append(runtime, grant.tenant, grant.user, data)
    return NewKey(key_id, key, user, role, list(data.scopes), grant.expires_at)


async def list_keys(
    runtime: Runtime, tenant: str, user: str | None = None, by: Identity | None = None
) -> list[KeyInfo]:
    """Returns the keys, including revoked and expired ones, oldest first. user: None means the whole tenant. by: only
    keys that this identity could have created; None means the operator of this machine. Raises InvalidToken,
    NotProjectedInTime, LogUnavailable."""
    check_place(tenant, user=user)
    async with runtime.reading(*READS) as conn, conn.cursor(row_factory=class_row(KeyInfo)) as cursor:
        keys = await (await cursor.execute(_LIST, (tenant, user, user))).fetchall()
    return [key for key in keys if by is None or _could_make(by, tenant, key)]


def _could_make(by: Identity, tenant: str, key: KeyInfo) -> bool:
    """Returns whether the identity may grant the rights of the key. The key's expiry does not matter, because revoking
    a key grants nothing."""
    role: Role = next((role for role in ROLES if role == key.role), "admin")
    try:
        by.check_grants(Identity(tenant, key.user, role, frozenset(key.scopes), None, by.expires_at))
    except Forbidden:
        return False
    return True


async def revoke_key(runtime: Runtime, tenant: str, key_id: str, by: Identity | None = None) -> KeyInfo:
    """Revokes a key permanently; when this returns, every process refuses it. by: see list_keys.

    Raises NotFound, InvalidToken, ThreadParked, NotProjectedInTime, LogUnavailable.
    """
    key = await _key(runtime, tenant, key_id, by)
    if key.revoked_at is None:
        await _append(runtime, tenant, key.user, ApiKeyRevoked(key_id=key_id))
    return await _key(runtime, tenant, key_id, by)


async def _key(runtime: Runtime, tenant: str, key_id: str, by: Identity | None) -> KeyInfo:
    for key in await list_keys(runtime, tenant, by=by):
        if key.id == key_id:
            return key
    raise NotFound(f"there is no API key {key_id[:80]!r}; `turnlog api-key list` shows the keys by id")


async def _append(runtime: Runtime, tenant: str, user: str, data: ApiKeyCreated | ApiKeyRevoked) -> None:
    thread = access_thread(user)
    event = Event(source=SOURCE, tenant=tenant, thread=thread, user=user, data=data)
    await append_unless_parked(runtime, event, READS)
    await runtime.wait_until_thread_projected(tenant, thread, READS)


def _after(ttl: timedelta) -> datetime:
    """Returns when the lifetime ends. Raises InvalidGrant."""
    if ttl <= timedelta(0):
        raise InvalidGrant("the lifetime must be positive; give one such as 12h or 90d")
    try:
        return (datetime.now(UTC) + ttl).replace(microsecond=0)
    except OverflowError:
        raise InvalidGrant("the lifetime is too long; give one such as 12h or 90d") from None
