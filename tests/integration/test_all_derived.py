"""Whether all that can be derived from the log is there: by reactors, projectors and the embedder."""

from functools import partial

from helpers.sample_events import turn
from helpers.servers import eventually
from helpers.stage import player

from turnlog.agent.memory.memories import list_memories
from turnlog.agent.operations.lag import all_derived

ROLES = ("projectors", "reactors", "agent", "analytics")


async def test_all_is_derived_once_the_reactors_have_made_memories_of_the_last_turn(
    nats_url: str, database_url: str
) -> None:
    play = player(nats_url, database_url, ROLES)
    async with play("projectors") as stage:
        await stage.runtime.log.append(turn("My corgi is called Sesame.", user="ann"))
        await stage.runtime.wait_until_projected()
        assert not await all_derived(stage.runtime), "no reactor has read the turn"
    async with play() as stage:
        await eventually(partial(all_derived, stage.runtime))
        (memory,) = await list_memories(stage.runtime, "default", "ann")
        assert "Sesame" in memory.content
