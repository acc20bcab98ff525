"""The commands `webhooks`: send a tenant's events to URLs."""

from typing import Annotated

import typer

from turnlog.agent.access import webhooks
from turnlog.consumers.cli.console import LAST_SEQ, Result, rows
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command

Name = Annotated[str, typer.Argument(help="The webhook's name: letters, digits, '_' and '-'.")]
Seq = Annotated[int, typer.Argument(min=1, max=LAST_SEQ)]

app = commands()
below = group(app, "webhooks", "Send a tenant's events to URLs, signed.")


@command(below, projecting=False)
async def create(
    rt: Runtime,
    name: Name,
    url: Annotated[str, typer.Argument(help="An https URL with a public address.")],
    types: Annotated[list[str] | None, typer.Option("--type", help="Type of event to send; may be repeated.")] = None,
    content: Annotated[bool, typer.Option("--content", help="Include what users said.")] = False,
) -> Result:
    """Send a tenant's future events to a URL. The secret is shown once."""
    made = await webhooks.create_webhook(rt, rt.settings.tenant, name, url, types or webhooks.TYPES, content)
    return Result(made, (f"secret {made.secret}", "Keep the secret now: it is not shown again."))


@command(below, "list", projecting=False)
async def list_(rt: Runtime) -> Result:
    """List a tenant's webhooks, with the number of events still to be sent."""
    return rows(await webhooks.list_webhooks(rt, rt.settings.tenant), _line, "no webhooks")


@command(below, projecting=False)
async def remove(rt: Runtime, name: Name) -> Result:
    """Remove a webhook; events not yet delivered are not sent."""
    removed = await webhooks.remove_webhook(rt, rt.settings.tenant, name)
    return Result({"removed": removed}, f"removed webhook {removed}")


@command(below, projecting=False)
async def failures(
    rt: Runtime, name: Annotated[str | None, typer.Argument(help="Only failures of this webhook.")] = None
) -> Result:
    """List events that were given up after the last attempt."""
    return rows(await webhooks.list_failures(rt, rt.settings.tenant, name), _failure_line, "no failures")


@command(below, projecting=False)
async def retry(rt: Runtime, name: Name, seq: Seq) -> Result:
    """Send an event that was given up once more, now."""
    sent = await webhooks.retry_failure(rt, rt.settings.tenant, name, seq)
    return Result(
        {"delivered": sent}, "delivered" if sent else "not delivered; `webhooks failures` says why", code=not sent
    )


@command(below, projecting=False)
async def drop(rt: Runtime, name: Name, seq: Seq) -> Result:
    """Discard an event that was given up; it is never sent."""
    await webhooks.drop_failure(rt, rt.settings.tenant, name, seq)
    return Result({"dropped": seq}, f"dropped {seq}")


def _line(webhook: "webhooks.WebhookInfo") -> str:
    counts = f"{webhook.pending:,} to come, {webhook.retrying:,} again later, {webhook.failures:,} failed"
    return f"{webhook.name}  {webhook.url}  {counts}"


def _failure_line(failure: "webhooks.Failure") -> str:
    return f"{failure.seq:>8}  {failure.webhook:<16}  {failure.failed_at:%F %H:%M}  {failure.error}"
