"""entities: whom and what a user speaks of (P8)."""

from typing import Annotated

import typer

from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import Json, Tenant, emit, out, run, tenant_of


def register(app: typer.Typer) -> None:
    app.command()(entities)


def entities(
    user: Annotated[str, typer.Option("--user", "-u", help="Whose.")],
    type_: Annotated[str | None, typer.Option("--type", help="Only these: PERSON, SCHOOL, EVENT, TOPIC, …")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """People, schools, events and topics that a user speaks of, most mentioned first."""

    async def work(settings: Settings) -> int:
        from turnlog.consumers.recalling_memories import entity_lines
        from turnlog.consumers.runtime import opened, projecting
        from turnlog.events.subjects import memory_thread
        from turnlog.projectors.memory_lookup import entities_of

        kind = type_.upper() if type_ else None
        async with opened(settings) as runtime, projecting(runtime):
            await runtime.settle(names=("entities",))
            async with runtime.pool.connection() as conn:
                rows = await entities_of(conn, tenant_of(settings, tenant), memory_thread(user), kind, limit)
        if json:
            emit(rows)
        elif not rows:
            out.print(f"{user} has spoken of nobody and nothing that is known by name", markup=False)
        for row in () if json else rows:
            for line in entity_lines(row):
                out.print(line, markup=False)
        return 0

    run(work, json)
