"""The three checks of the junk measurement on the conversation that turnlog ships (see benchmarks/junk.py)."""

from helpers.memory_quality import stored_quality
from helpers.stage import player

from turnlog.agent.sample import load_sample


async def test_every_stored_memory_quotes_its_turn_few_stand_twice_and_none_is_the_assistants(
    nats_url: str, database_url: str
) -> None:
    async with player(nats_url, database_url, ("projectors",))() as stage:
        found = await stored_quality(stage.runtime, [load_sample()])
    assert len(found.memories) >= 15
    assert found.with_quote == 1.0
    assert found.duplicates < 0.02
    assert found.of_others == 0.0
