"""Memories are recalled by another word for a person's role: a kid is a son or a daughter, 老公 is a husband."""

from datetime import timedelta

import pytest
from conftest import Settled
from helpers.memory_events import NOW, entities, recorded

from turnlog.agent.recall.memory_search import MemoryRecall
from turnlog.events.contracts import Event
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.memory_candidates import MemoryScope

pytestmark = pytest.mark.usefixtures("running_projectors")


class Ask:
    def __init__(self, log: Log, db: Connection, settled: Settled) -> None:
        self.log, self.db, self.settled = log, db, settled

    async def given(self, *events: Event) -> None:
        await self.log.append_many(list(events))
        await self.settled("memories", "entities")

    async def __call__(self, question: str) -> list[str]:
        scope = MemoryScope("default", memory_thread("ann"), NOW)
        recalled = await MemoryRecall(None).search(self.db, scope, question)
        return [memory.memory.content for memory in recalled.memories]


@pytest.fixture
def ask(log: Log, db: Connection, settled: Settled) -> Ask:
    return Ask(log, db, settled)


@pytest.mark.parametrize(
    ("question", "memory"),
    [
        ("王芳的孩子几岁了？", "儿子小明5岁"),
        ("What is my kid called?", "儿子小明5岁"),
        ("我老公不能吃什么？", "husband is allergic to nuts"),
        ("What about my mom?", "妈妈的邮箱：a@b.com"),
        ("What about my mother?", "妈妈的邮箱：a@b.com"),
    ],
)
async def test_a_memory_is_found_by_another_word_for_the_role(ask: Ask, question: str, memory: str) -> None:
    await ask.given(
        recorded("儿子小明5岁"),
        recorded("husband is allergic to nuts"),
        entities(("PERSON", "妈妈")),
        recorded("妈妈的邮箱：a@b.com", entities=("妈妈",)),
        recorded("boss's birthday is 05-03"),
        recorded("住在上海"),
    )
    assert await ask(question) == [memory]


async def test_the_word_that_was_asked_for_comes_before_another_for_the_role(ask: Ask) -> None:
    await ask.given(
        recorded("daughter plays the violin", NOW - timedelta(days=2)),
        recorded("son plays the drums", NOW - timedelta(days=1)),
        recorded("child plays chess"),
    )
    assert (await ask("What does my daughter play?"))[0] == "daughter plays the violin"
