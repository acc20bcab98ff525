"""subscribers create, list, remove: programs of a tenant that read its log from NATS."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.consumers.cli.options import add, group
from turnlog.consumers.cli.runner import serve

if TYPE_CHECKING:
    from turnlog.agent.runtime import Runtime
    from turnlog.agent.use_cases.subscribers import NewSubscriber, RemovedSubscriber, SubscriberInfo

Name = Annotated[str, typer.Argument(help="The subscriber's name: letters, digits, '_' and '-'.")]


def register(app: typer.Typer) -> None:
    subscribers = group(app, "subscribers", "Programs of a tenant that read its log from NATS.")
    add(subscribers, create)
    add(subscribers, list_, "list")
    add(subscribers, remove)


def create(
    name: Name, from_now: Annotated[bool, typer.Option("--from-now", help="Without the events until now.")] = False
) -> None:
    """Make a durable on a tenant's events and a NATS user that can read it, and publish for the tenant, alone.

    The password is shown once. turnlog's own nats-server restarts for it; for another one the configuration is printed.
    """
    from turnlog.agent.use_cases.subscribers import create_subscriber
    from turnlog.consumers.subscribing import admitting

    async def use(runtime: "Runtime") -> "NewSubscriber":
        place = (runtime.settings.tenant, name)
        return await create_subscriber(runtime, *place, admitting(runtime.settings), from_now)

    serve(use, _created, projecting=False)


def list_() -> None:
    """List a tenant's subscribers with their positions."""
    from turnlog.agent.use_cases.subscribers import list_subscribers

    serve(
        lambda rt: list_subscribers(rt, rt.settings.tenant),
        lambda found: [_line(one) for one in found],
        projecting=False,
    )


def remove(name: Name) -> None:
    """Remove a subscriber: its position is lost, and it can no longer connect."""
    from turnlog.agent.use_cases.subscribers import remove_subscriber
    from turnlog.consumers.subscribing import admitting

    serve(
        lambda rt: remove_subscriber(rt, rt.settings.tenant, name, admitting(rt.settings)), _removed, projecting=False
    )


def _created(made: "NewSubscriber") -> Iterator[str]:
    yield f"user {made.user}"
    yield f"password {made.password}"
    yield f"stream {made.stream}, durable {made.durable}, JetStream domain {made.domain}"
    yield "Keep the password now: it is not shown again."
    if made.to_configure:
        yield made.to_configure


def _removed(removed: "RemovedSubscriber") -> Iterator[str]:
    yield f"removed subscriber {removed.name}"
    if removed.to_configure:
        yield removed.to_configure


def _line(one: "SubscriberInfo") -> str:
    made = f"  since {one.created_at:%F}" if one.created_at else ""
    return f"{one.name}  at {one.position:,}, {one.pending:,} to come, {one.unacknowledged:,} not acknowledged{made}"
