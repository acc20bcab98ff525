"""Signing in to the web page: exchanges the ticket of a printed link for a token, and shows whom a token is for."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from turnlog.agent.access.access import Access
from turnlog.agent.access.api_keys import issue_token
from turnlog.agent.access.identity import Identity, Role
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.principal import Principal, identify

router = APIRouter(prefix="/api", tags=["access"])
SESSION = timedelta(hours=12)


class SignIn(RequestBody):
    """The body of a sign-in. ticket: from the link that `turnlog up` and `turnlog page` print."""

    ticket: str = Field(min_length=1, max_length=200)


class Caller(BaseModel):
    """The caller and their rights. expires_at: when the credential expires; null for an API key that does not
    expire.
    """

    tenant: str
    user: str
    role: Role
    scopes: list[str]
    expires_at: datetime | None

    @classmethod
    def of(cls, identity: Identity) -> "Caller":
        return cls(
            tenant=identity.tenant,
            user=identity.user,
            role=identity.role,
            scopes=sorted(identity.scopes),
            expires_at=identity.expires_at,
        )


class SignedIn(BaseModel):
    """The result of a sign-in. token: to be sent as `Authorization: Bearer …`."""

    token: str
    caller: Caller


@router.post("/sign-in")
async def sign_in(body: SignIn, request: Request) -> SignedIn:
    """Exchanges the ticket of a printed link, which works once within ten minutes, for a token that is valid for twelve
    hours.
    """
    runtime: Runtime = request.app.state.runtime
    identity = await runtime.cached(Access).sign_in_tickets.redeem(body.ticket)
    made = issue_token(runtime.settings, identity.tenant, identity.user, identity.role, SESSION, identity.scopes)
    signed_in = await runtime.cached(Access).identify(made.token)
    return SignedIn(token=made.token, caller=Caller.of(signed_in))


@router.get("/caller")
async def show_caller(caller: Annotated[Principal, Depends(identify)]) -> Caller:
    """Returns whom the credential is for, and what it may do."""
    return Caller.of(caller.identity)
