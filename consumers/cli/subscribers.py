"""The commands `subscribers`: programs of a tenant that read its log from NATS."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from turnlog.agent.access import subscribers
from turnlog.consumers import subscribing
from turnlog.consumers.cli.console import Result
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.cli.text_tables import table

Name = Annotated[str, typer.Argument(help="The subscriber's name: letters, digits, '_' and '-'.")]

app = commands()
below = group(app, "subscribers", "Programs of a tenant that read its log from NATS.")


@command(below, projecting=False)
async def create(
    rt: Runtime,
    name: Name,
    from_now: Annotated[bool, typer.Option("--from-now", help="Skip the events until now.")] = False,
) -> Result:
    """Create a durable consumer of a tenant's events, and a NATS user that can only read it and publish for the tenant.

    The password is shown once. turnlog's own nats-server restarts; for any other server, the configuration is printed.
    """
    admitting = subscribing.admitting(rt.settings)
    made = await subscribers.create_subscriber(rt, rt.settings.tenant, name, admitting, from_now)
    lines = (
        f"user {made.user}",
        f"password {made.password}",
        f"stream {made.stream}, durable {made.durable}, JetStream domain {made.domain}",
        "Keep the password now: it is not shown again.",
        made.to_configure,
    )
    return Result(made, filter(None, lines))


@command(below, "list", projecting=False)
async def list_(rt: Runtime) -> Result:
    """List a tenant's subscribers with their positions."""
    return table(await subscribers.list_subscribers(rt, rt.settings.tenant), _COLUMNS, "no subscribers")


@command(below, projecting=False)
async def remove(rt: Runtime, name: Name) -> Result:
    """Remove a subscriber: its position is lost, and it can no longer connect."""
    admitting = subscribing.admitting(rt.settings)
    removed = await subscribers.remove_subscriber(rt, rt.settings.tenant, name, admitting)
    return Result(removed, filter(None, (f"removed subscriber {removed.name}", removed.to_configure)))


_COLUMNS: dict[str, Callable[["subscribers.SubscriberInfo"], Any]] = {
    "NAME": lambda subscriber: subscriber.name,
    "POSITION": lambda subscriber: subscriber.position,
    "TO COME": lambda subscriber: subscriber.pending,
    "UNACKNOWLEDGED": lambda subscriber: subscriber.unacknowledged,
    "SINCE": lambda subscriber: f"{subscriber.created_at:%F}" if subscriber.created_at else "",
}
