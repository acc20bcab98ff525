"""The caller of a request: the identity in its token, and a runtime that sees only its tenant."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC
from typing import Annotated, Any
from uuid import UUID, uuid5

from fastapi import Depends, Header, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from uuid_utils.compat import uuid7

from turnlog.agent.access.access import Access
from turnlog.agent.access.idempotency import Write
from turnlog.agent.access.identity import Forbidden, Identity, Role, Unauthenticated
from turnlog.agent.access.throttle.fair_share import in_share
from turnlog.agent.conversations.ownership import claimed, own_thread
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api import idempotency
from turnlog.events.contracts import ParticipantRole
from turnlog.events.errors import InvalidEvent, NotFound
from turnlog.events.local_time import caller_zone, zone_named, zone_or

_WRITES = UUID("0193b5a2-6d5e-7c1f-9a43-5f0c8e2b7d11")
Place = tuple[Runtime, str, str]
OfUser = Annotated[str | None, Query(max_length=255, description="Another user; for operators of the tenant.")]
bearer = HTTPBearer(
    auto_error=False, description="A token of `turnlog token`, or an API key of `turnlog api-key create`."
)


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request. runtime: limited to the caller's tenant, also by the database. system: a runtime without
    that limit.
    """

    identity: Identity
    runtime: Runtime
    system: Runtime

    @property
    def tenant(self) -> str:
        return self.identity.tenant

    @property
    def user(self) -> str:
        return self.identity.user

    @property
    def person(self) -> Place:
        """Returns runtime, tenant and user, the first arguments of functions about a person."""
        return self.runtime, self.tenant, self.user

    def person_named(self, user: str | None) -> Place:
        """Returns `person` for the user that a read names, or for the caller if it names None. Raises Forbidden for
        another user without an operator's scope."""
        if user is not None and user != self.user:
            self.identity.require("operate")
        return self.runtime, self.tenant, self.user if user is None else user

    async def check(self) -> None:
        """Checks the credential again, for connections that stay open. Raises Unauthenticated, TokenExpired."""
        await self.system.cached(Access).check(self.identity)

    def check_user(self, user: str | None) -> None:
        """Raises NotFound if a request names a user other than its caller."""
        if user is not None and user != self.user:
            raise NotFound(f"there is no user {user[:80]!r} here: a request is made for its caller")

    async def owns(self, thread: str, least: ParticipantRole = "owner") -> Place:
        """Returns the caller's conversation with this name or id, for functions about a thread. least: the role in
        another user's conversation from which the caller may use it too. Raises NotFound, Forbidden."""
        thread = await own_thread(self.runtime, self.tenant, thread, self.user, least=least)
        return self.runtime, self.tenant, thread

    async def may_begin(self, thread: str, least: ParticipantRole = "owner") -> Place:
        """Does what `owns` does, but also accepts a thread without events, which stays without an owner. Raises
        NotFound, Forbidden."""
        thread = await own_thread(self.runtime, self.tenant, thread, self.user, begins=True, least=least)
        return self.runtime, self.tenant, thread

    async def claims(self, thread: str) -> Place:
        """Does what `owns` does; a thread without events then belongs to the caller."""
        return self.runtime, self.tenant, await claimed(self.runtime, self.tenant, thread, self.user)


def use_zone(identity: Identity, named: str | None) -> None:
    """Sets the time zone of the current request. named: the zone in its header, which takes precedence over the
    token's. Raises InvalidEvent."""
    try:
        caller_zone.set(zone_named(named) if named else zone_or(identity.zone, UTC))
    except ValueError as error:
        raise InvalidEvent(f"X-Turnlog-Timezone: {error}") from None


async def identify(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
    x_turnlog_user: Annotated[
        str | None, Header(description="The user that a key with the scope act-as-user acts for, in UTF-8.")
    ] = None,
    x_turnlog_timezone: Annotated[
        str | None, Header(description="The time zone of the person, such as Asia/Shanghai.")
    ] = None,
) -> Principal:
    """Returns the caller. Raises Unauthenticated, TokenExpired, Forbidden, IssuerUnavailable, and InvalidEvent for an
    unknown time zone."""
    if credentials is None:
        raise Unauthenticated("send a token: `Authorization: Bearer …`; `turnlog token --user NAME` prints one")
    system: Runtime = request.app.state.runtime
    act_as = x_turnlog_user and x_turnlog_user.encode("latin-1").decode(errors="replace")  # headers arrive as Latin-1
    identity = await system.cached(Access).identify(credentials.credentials, act_as)
    use_zone(identity, x_turnlog_timezone)
    return Principal(identity, system.for_tenant(identity.tenant), system)


def needs(scope: str, role: Role | None = None) -> Any:
    """Returns a dependency that returns the caller, and raises Forbidden if the scope or the role is missing."""

    async def allowed(caller: Annotated[Principal, Depends(identify)]) -> Principal:
        caller.identity.require(scope, role)
        return caller

    return Depends(allowed)


async def reads_in_turn(caller: Annotated[Principal, needs("read")]) -> AsyncIterator[Principal]:
    """Waits until the caller may read, because each user has only some reads at a time; yields the caller. The read
    counts until the response is sent. Raises Forbidden, TooManyWaiting.
    """
    async with in_share(*caller.person, "reads"):
        yield caller


# A Watcher's response is endless, so it does not count as a read; streams are counted separately.
Watcher = Annotated[Principal, needs("read")]
Reader = Annotated[Principal, Depends(reads_in_turn)]
Writer = Annotated[Principal, needs("write")]
Asker = Annotated[Principal, needs("ask")]
Eraser = Annotated[Principal, needs("erase")]
Admin = Annotated[Principal, needs("read", "admin")]
Operator = Annotated[Principal, needs("operate")]
KeyMaker = Annotated[Principal, needs("keys")]


async def server_operator(caller: Operator) -> Principal:
    """Returns the caller if they may operate what all tenants share. Raises Forbidden for operators of other tenants
    than the server's own.
    """
    own = caller.system.settings.tenant
    if caller.tenant != own:
        raise Forbidden(f"all tenants share this, so it needs an operator of the tenant {own!r} (TURNLOG_TENANT)")
    return caller


ServerOperator = Annotated[Principal, Depends(server_operator)]


async def write_id(
    request: Request,
    caller: Annotated[Principal, Depends(identify)],
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=255,
            description="For two days, a write that is sent again with the same key is not repeated, and gets the "
            "first response. With another body it is refused.",
        ),
    ] = None,
) -> UUID:
    """Returns the id of the event that a request writes. All routes except those of app.WITHOUT_WRITES depend on it,
    because it detects repeated writes. Raises Repeated, KeyReused, WriteUnderWay."""
    if idempotency_key is None or not idempotency.may_repeat(request):
        return uuid7()
    request_key = "\0".join((caller.tenant, caller.user, request.method, request.url.path, idempotency_key))
    access = caller.system.cached(Access)
    scopes = " ".join(sorted(caller.identity.scopes))
    headers = "\0".join(request.headers.get(name, "") for name in idempotency.HEADERS)
    asked = f"{scopes}\0{request.url.query}\0{headers}\0".encode() + await request.body()
    write = Write(
        caller.tenant,
        caller.user,
        uuid5(_WRITES, request_key),
        access.digest_of(b"request\0" + request_key.encode() + b"\0" + asked),
        access.digest_of(b"answer\0" + request_key.encode()),
    )
    await idempotency.begin(request, caller.system, write)
    return write.id


WriteId = Annotated[UUID, Depends(write_id)]
