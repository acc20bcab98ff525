"""The three checks of the junk measurement on the conversation that turnlog ships (see benchmarks/junk.py).

Also tests which parts of a turn the extraction reads.
"""

from datetime import UTC

from conftest import Settled
from helpers.memory_quality import stored_quality
from helpers.sample_events import turn
from helpers.stage import player

from turnlog.agent.operations.sample import load_sample
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.extraction_lookup import user_turns


async def test_every_stored_memory_quotes_its_turn_few_are_duplicates_and_none_is_the_assistants(
    nats_url: str, database_url: str
) -> None:
    async with player(nats_url, database_url, ("projectors",))() as stage:
        quality = await stored_quality(stage.runtime, [load_sample()])
    assert len(quality.memories) >= 15
    assert quality.with_quote == 1.0
    assert quality.duplicates < 0.02
    assert quality.of_others == 0.0


async def test_a_turn_is_read_without_its_images_and_as_far_as_its_words_are_used(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    blocks = [
        {"type": "text", "text": "I live in Lisbon"},
        {"type": "image", "url": "data:image/png;base64,AAAA"},
        {"type": "tool_result", "tool_use_id": "1", "content": "It rains"},
    ]
    await log.append_many([turn("hello", user="ann"), turn(blocks, user="ann", minutes=1)])
    await settled()
    first, second = await user_turns(db, "default", "t", "ann", ["user"], UTC, 0, 9, 4)
    assert first.content == "hell"
    assert [(part["type"], part.get("text") or part["content"]) for part in second.content] == [
        ("text", "I li"),
        ("tool_result", "It r"),
    ]
