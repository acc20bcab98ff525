"""Webhooks of the tenant, for operators."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from turnlog.agent.access import webhooks
from turnlog.agent.access.webhooks import TYPES, Failure, NewWebhook, WebhookInfo
from turnlog.consumers.api.bodies import RequestBody
from turnlog.consumers.api.principal import Operator
from turnlog.consumers.api.routes.threads import Seq

router = APIRouter(prefix="/api/operations/webhooks", tags=["operations"])
Name = Annotated[str, Path(max_length=64)]


class WebhookTarget(RequestBody):
    """The target of a webhook. types: types of events to send. content: also send what users said, decrypted."""

    name: str = Field(max_length=64)
    url: str = Field(max_length=2_000)
    types: list[Annotated[str, Field(pattern=r"^[a-z_]{1,64}$")]] = Field(list(TYPES), min_length=1, max_length=50)
    content: bool = False


class Sent(BaseModel):
    """The result of sending an event. delivered: whether the target accepted it."""

    delivered: bool


@router.post("", status_code=201)
async def create_webhook(body: WebhookTarget, caller: Operator) -> NewWebhook:
    """Creates a webhook: the tenant's future events are sent to a URL. The response contains the secret for verifying
    signatures, which is shown only once."""
    return await webhooks.create_webhook(caller.system, caller.tenant, body.name, body.url, body.types, body.content)


@router.get("")
async def list_webhooks(caller: Operator) -> list[WebhookInfo]:
    """Lists the webhooks of the tenant."""
    return await webhooks.list_webhooks(caller.system, caller.tenant)


@router.delete("/{name}", status_code=204)
async def remove_webhook(name: Name, caller: Operator) -> None:
    """Removes a webhook; events not yet delivered are not sent."""
    await webhooks.remove_webhook(caller.system, caller.tenant, name)


@router.get("/{name}/failures")
async def list_failures(name: Name, caller: Operator) -> list[Failure]:
    """Lists events that were given up after the last attempt."""
    return await webhooks.list_failures(caller.system, caller.tenant, name)


@router.post("/{name}/failures/{seq}/retry")
async def retry_failure(name: Name, seq: Seq, caller: Operator) -> Sent:
    """Sends an event that was given up once more, now."""
    return Sent(delivered=await webhooks.retry_failure(caller.system, caller.tenant, name, seq))


@router.post("/{name}/failures/{seq}/drop", status_code=204)
async def drop_failure(name: Name, seq: Seq, caller: Operator) -> None:
    """Discards an event that was given up; it is never sent."""
    await webhooks.drop_failure(caller.system, caller.tenant, name, seq)
