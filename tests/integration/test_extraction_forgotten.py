"""A memory that a user has forgotten is not extracted again when the model reads the same turn later."""

from collections.abc import Iterator

import pytest
from helpers.extraction import ExtractingServer, extracting_roles, memory, user_turn
from helpers.stage import Play

from turnlog.agent.memory.deciding.service import Memories
from turnlog.events.contracts import MemoryRecorded
from turnlog.events.subjects import memory_thread

ANNS = memory_thread("ann")
LONG = {
    "en": "The committee talked about the roof of the school for a long time. " * 10,
    "zh": "委员会谈了很久学校的屋顶。" * 30,
}
SAID = {"en": "I live in Berlin. The door of the flat there is green.", "zh": "我住在柏林。那里的门是绿色的。"}
LATER = {
    "en": [
        memory("Has a green door at home", "The door of the flat there is green"),
        memory("Was in a committee", "The committee", turn=2),
    ],
    "zh": [memory("家里有绿色的门", "那里的门是绿色的"), memory("参加过委员会", "委员会", turn=2)],
}


@pytest.fixture
def model() -> Iterator[ExtractingServer]:
    with ExtractingServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: ExtractingServer) -> Play:
    return extracting_roles(nats_url, database_url, model, ("projectors", "reactors"))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("is_forgotten", [True, False], ids=["forgotten", "kept"])
async def test_a_turn_with_a_forgotten_memory_is_not_extracted_again(
    play: Play, model: ExtractingServer, language: str, is_forgotten: bool
) -> None:
    model.extracts = {"memories": LATER[language], "entities": []}
    async with play() as stage:
        log, pool = stage.runtime.log, stage.runtime.pool
        await log.append_many([user_turn(SAID[language], 1)])
        await stage.until("memory_recorded", 1, ANNS)
        [by_rule] = await stage.all("memory_recorded", ANNS)
        assert isinstance(by_rule, MemoryRecorded)
        if is_forgotten:
            await Memories(log, pool).forget("default", "ann", by_rule.memory.id)
        await log.append_many([user_turn(LONG[language], 2)])
        await stage.until("memories_extracted", 2, ANNS)  # by the rules and by the model
        contents = {event.memory.content for event in await stage.all("memory_recorded", ANNS)}
    late = {later["content"] for later in LATER[language][is_forgotten:]}
    assert contents == {by_rule.memory.content} | late
