"""If a user appends many turns, that user's appends wait for the projectors; others do not wait, and none are
refused."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from helpers.stage import Stage, player

from turnlog.agent.access.throttle.pace import AHEAD, Paces
from turnlog.agent.answering.turns import NewTurn, add_turns
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.runtime import Runtime


@pytest.fixture
async def stage(nats_url: str, database_url: str) -> AsyncIterator[Stage]:
    """Yields a stage in which all projections have a position, because `nothing_projected` locks existing positions."""
    async with player(nats_url, database_url, ("projectors",))() as made:
        await made.say(1, 1, "before")
        await made.runtime.wait_until_projected()
        yield made


@asynccontextmanager
async def nothing_projected(runtime: Runtime) -> AsyncIterator[None]:
    """Blocks the projectors of all partitions while the block runs."""
    async with runtime.pool.connection() as conn, conn.transaction():
        await conn.execute("SELECT FROM projection_positions ORDER BY projection, partition FOR UPDATE")
        yield


async def say(stage: Stage, user: str, numbers: Sequence[int]) -> None:
    turns = [NewTurn("user", f"message {number}") for number in numbers]
    await add_turns(stage.runtime, "default", f"of {user}", turns, user=user)


@pytest.mark.nightly
async def test_a_flood_waits_for_the_projection_of_its_earlier_turns_and_other_users_do_not(stage: Stage) -> None:
    stage.runtime.cached(Paces).patience_s = 60.0
    async with nothing_projected(stage.runtime):
        await say(stage, "ann", range(AHEAD))
        flood = asyncio.create_task(say(stage, "ann", range(AHEAD, 2 * AHEAD + 1)))
        for number in range(20):
            await say(stage, "bob", [number])
        assert not flood.done()
        assert len(await stage.events("of ann")) == AHEAD
    await flood
    assert [event.data.content for event in await stage.events("of ann")] == [
        f"message {number}" for number in range(2 * AHEAD + 1)
    ]
    page = await transcript(stage.runtime, "default", "of ann", newest=True, limit=1)
    assert page.turns[0].content == f"message {2 * AHEAD}"


async def test_turns_are_stored_though_nothing_is_projected(stage: Stage) -> None:
    stage.runtime.cached(Paces).patience_s = 0.0
    async with nothing_projected(stage.runtime):
        await say(stage, "ann", range(AHEAD + 1))
        await say(stage, "ann", range(AHEAD + 1, AHEAD + 3))
    assert len(await stage.events("of ann")) == AHEAD + 3
