"""API keys: make, list, revoke (S3)."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from psycopg.rows import class_row

from turnlog.agent.access.identity import InvalidGrant, granted
from turnlog.agent.access.keys import digest_of, new_key
from turnlog.agent.access.secret import secret_of
from turnlog.agent.access.tokens import OwnIssuer
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.agent.use_cases.unparked import append_unless_parked
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
    """key: the secret, which turnlog does not keep."""

    id: str
    key: str
    user: str
    role: str
    scopes: list[str]
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """used_at: to the minute; None: never."""

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
    """scopes: None gives all of the role's. Needs no server. Raises InvalidGrant, InvalidToken, InvalidSetting."""
    grant = granted(tenant, user, role, scopes, _after(ttl), key=False)
    token = OwnIssuer(secret_of(settings)).issue(grant, ttl)
    return NewToken(token, user, role, sorted(grant.scopes), grant.expires_at)


async def create_key(
    runtime: Runtime,
    tenant: str,
    user: str,
    role: str = "user",
    scopes: Collection[str] | None = None,
    label: str | None = None,
    ttl: timedelta | None = None,
) -> NewKey:
    """The key works when this returns. scopes: None gives all of the role's. ttl: None gives a key without an end.

    Raises InvalidGrant, InvalidToken, InvalidSetting, ThreadParked, NotProjectedInTime, LogUnavailable.
    """
    if label is not None and len(label) > MAX_LABEL_CHARS:
        raise InvalidGrant(f"a label has at most {MAX_LABEL_CHARS} characters")
    grant = granted(tenant, user, role, scopes, None if ttl is None else _after(ttl), key=True)
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


async def list_keys(runtime: Runtime, tenant: str, user: str | None = None) -> list[KeyInfo]:
    """Revoked and expired ones too, the oldest first. user: None is the whole tenant. Raises InvalidToken."""
    check_place(tenant, user=user)
    await runtime.settle(names=READS)
    async with runtime.pool.connection() as conn, conn.cursor(row_factory=class_row(KeyInfo)) as cursor:
        return await (await cursor.execute(_LIST, (tenant, user, user))).fetchall()


async def revoke_key(runtime: Runtime, tenant: str, key_id: str) -> KeyInfo:
    """The key is refused everywhere when this returns; once revoked it stays so.

    Raises NotFound, InvalidToken, ThreadParked, NotProjectedInTime, LogUnavailable.
    """
    found = await _key(runtime, tenant, key_id)
    if found.revoked_at is None:
        await _append(runtime, tenant, found.user, ApiKeyRevoked(key_id=key_id))
    return await _key(runtime, tenant, key_id)


async def _key(runtime: Runtime, tenant: str, key_id: str) -> KeyInfo:
    for found in await list_keys(runtime, tenant):
        if found.id == key_id:
            return found
    raise NotFound(f"there is no API key {key_id[:80]!r}; `turnlog key list` shows the keys by id")


async def _append(runtime: Runtime, tenant: str, user: str, data: ApiKeyCreated | ApiKeyRevoked) -> None:
    thread = access_thread(user)
    event = Event(source=SOURCE, tenant=tenant, thread=thread, user=user, data=data)
    await append_unless_parked(runtime, event, READS)
    await runtime.settle_thread(tenant, thread, READS)


def _after(ttl: timedelta) -> datetime:
    """Raises InvalidGrant."""
    try:
        if ttl <= timedelta(0):
            raise OverflowError
        return (datetime.now(UTC) + ttl).replace(microsecond=0)
    except OverflowError:
        raise InvalidGrant("the lifetime is no time that can come; give one such as 12h or 90d") from None
