"""The retrieval context contains turns, memories, preferences, entities and their counts for one message."""

import pytest
from conftest import Settled
from helpers.memory_events import NOW, entities, event, memory, memory_id, recorded
from helpers.sample_events import turn
from helpers.servers import rows

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.preferences import Preferences
from turnlog.agent.recall.memory_search import MemoryRecall
from turnlog.agent.recall.retrieval_context import RetrievalContext, retrieval_context
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import EntitiesFound, Entity, PreferencesSet, UserPreferences
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.entities import ENTITIES
from turnlog.projectors.rebuild.verify import verify

pytestmark = pytest.mark.usefixtures("running_projectors")


async def test_everything_known_for_a_message_is_returned_together(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many([turn(f"message {n}", "user" if n % 2 else "assistant", "t", n) for n in range(1, 21)])
    await log.append_many(
        [
            entities(("PERSON", "Maria Lopez"), ("SCHOOL", "清华大学"), ("TOPIC", "Chess")),
            recorded("Maria Lopez is my sister", entities=("Maria Lopez",)),
            recorded("我想申请清华大学", entities=("清华大学",)),
            recorded("请用中文回答", kind="PREFERENCE"),
            recorded("I like quiet places", kind="PREFERENCE"),
            recorded("Maria Lopez is my boss", user="bob", entities=("Maria Lopez",)),
        ]
    )
    await settled()
    context = await retrieval_context(db, MemoryRecall(None), "default", "ann", "Who is Maria Lopez?", NOW, 20)
    assert [memory.memory.content for memory in context.memories] == ["Maria Lopez is my sister"]
    assert context.memories[0].explain()["entity"]["value"] == 1.0
    assert context.preferences == Preferences(UserPreferences(language="zh"), ("I like quiet places",))
    assert [(entity["type"], entity["name"]) for entity in context.entities] == [("PERSON", "Maria Lopez")]
    assert context.message_count == 20
    assert context.degraded is not None


async def test_a_manual_entity_is_found_without_a_memory(log: Log, db: Connection, settled: Settled) -> None:
    await log.append(entities(("PERSON", "Maria Lopez")))
    await settled()
    context = await retrieval_context(db, MemoryRecall(None), "default", "ann", "Who is Maria Lopez?", NOW)
    assert [entity["name"] for entity in context.entities] == ["Maria Lopez"]


async def test_for_a_user_who_disabled_memory_only_manual_preferences_are_returned(
    log: Log, db: Connection, settled: Settled
) -> None:
    by_hand = UserPreferences(language="en", enable_memory=False)
    await log.append_many(
        [
            entities(("PERSON", "Maria Lopez")),
            recorded("Maria Lopez is my sister", entities=("Maria Lopez",)),
            recorded("I prefer short answers", kind="PREFERENCE"),
            event(PreferencesSet(preferences=by_hand)),
        ]
    )
    await settled()
    context = await retrieval_context(db, MemoryRecall(None), "default", "ann", "Who is Maria Lopez?", NOW)
    assert context == RetrievalContext(preferences=Preferences(by_hand))


async def test_entities_of_the_memories_come_along_in_chinese(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many([entities(("SCHOOL", "清华大学")), recorded("我想申请清华大学", entities=("清华大学",))])
    await settled()
    context = await retrieval_context(db, MemoryRecall(None), "default", "ann", "我想申请哪所学校？", NOW)
    assert [entity["name"] for entity in context.entities] == ["清华大学"]


async def test_nothing_is_returned_for_an_unknown_user(db: Connection, settled: Settled) -> None:
    await settled()
    context = await retrieval_context(db, MemoryRecall(None), "default", "nobody", "Hello?", NOW)
    assert context == RetrievalContext()


@pytest.mark.parametrize(
    ("name", "words", "question"),
    [
        ("Mia", "My sister Mia is allergic to nuts", "Who is Mia?"),
        ("米娅", "我妹妹米娅对花生过敏", "米娅是谁？"),
    ],
)
async def test_entities_contain_no_words_of_a_forgotten_memory(
    log: Log, db: Connection, database_url: str, settled: Settled, name: str, words: str, question: str
) -> None:
    said = memory(words, entities=(name,))
    secret = Entity(type="PERSON", name=name, description=words, attributes={"note": words}, sources=said.sources)
    other = Entity(type="TOPIC", name="Chess", sources=memory("I like Chess").sources)
    await log.append_many([recorded(words, entities=(name,)), event(EntitiesFound(entities=(secret, other)))])
    await settled()
    before = await retrieval_context(db, MemoryRecall(None), "default", "ann", question, NOW)
    assert [entity["description"] for entity in before.entities] == [words]
    async with connection_pool(database_url) as pool:
        await Memories(log, pool).forget("default", "ann", memory_id(words))
    late = event(EntitiesFound(entities=(secret,)))
    await log.append(late)
    await settled()
    context = await retrieval_context(db, MemoryRecall(None), "default", "ann", question, NOW)
    assert (context.memories, context.entities) == ((), ())
    assert await rows(db, "SELECT name FROM entities") == [("Chess",)]
    assert (await verify(log, database_url, ENTITIES)).clean
