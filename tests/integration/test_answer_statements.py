"""An answer takes a bounded number of SQL statements."""

import asyncio
from typing import Any

import pytest
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, answer_to
from helpers.stage import player
from psycopg import AsyncCursor


async def test_an_answer_takes_a_bounded_number_of_statements(
    nats_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the smallest number of eight answers, because background loops also execute statements."""
    statements: list[str] = []
    others: set[str] = set()
    execute = AsyncCursor.execute

    async def noted(cursor: AsyncCursor[Any], query: Any, *arguments: Any, **more: Any) -> AsyncCursor[Any]:
        if (task := asyncio.current_task()) is not None and task.get_name() not in others:
            statements.append(query if isinstance(query, str) else bytes(query).decode())
        return await execute(cursor, query, *arguments, **more)

    counts: list[tuple[int, int]] = []
    with OpenAIServer() as model:
        play = player(
            nats_url, database_url, ("projectors", "agent"), api_base_url=model.url, api_key=model.key, model="m"
        )
        async with play() as stage:
            others |= {beat.loop for beat in stage.runtime.heartbeats.loops} - {"agent"}
            await answer_to(stage.runtime, Place(user="ann"), "What is on day 0?")
            monkeypatch.setattr(AsyncCursor, "execute", noted)
            for day in range(1, 9):
                statements.clear()
                await answer_to(stage.runtime, Place(user="ann"), f"What is on day {day}?")
                await stage.runtime.wait_until_projected()
                counts.append((len(statements), sum("lineage" in statement for statement in statements)))
    assert min(total for total, _ in counts) <= 24
    assert min(lineages for _, lineages in counts) <= 3
