"""Forgetting by hand removes a memory's words everywhere and makes the memories valid again that it had closed."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from conftest import Settled
from helpers.memory_events import memory_id, recorded
from helpers.sample_events import MAY_8, event
from helpers.servers import rows
from helpers.user_memories import ANN, UserMemories, extracted, open_user_memories

from turnlog.agent.memory.deciding.revisions import MAX_FORGOTTEN_PER_WRITE
from turnlog.events.contracts import Interval, MemoriesCompacted
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import conflicts


@pytest.fixture
async def mind(
    log: Log, db: Connection, settled: Settled, database_url: str, running_projectors: Runner
) -> AsyncIterator[UserMemories]:
    async with open_user_memories(log, db, settled, database_url) as opened:
        yield opened


async def test_forgetting_removes_the_words_of_all_equivalent_memories(mind: UserMemories) -> None:
    old = await mind.says("My PIN is 1234")
    new = await mind.memories.edit("default", "ann", old, "My PIN is 4321")
    other = await mind.says("I like tea")
    assert await mind.memories.forget("default", "ann", new) == [old, new]
    assert await mind.holds() == ["I like tea"]
    assert [(row.content, row.status) for row in (await mind.row(old), await mind.row(new))] == [("", "forgotten")] * 2
    for id_ in (old, new):
        with pytest.raises(NotFound):
            await mind.memories.forget("default", "ann", id_)
    assert (await mind.row(other)).status == "valid"


async def test_forgetting_removes_the_words_also_from_other_times(mind: UserMemories) -> None:
    for city in ("Berlin", "Bonn", "Berlin"):
        last = await mind.says(f"I live in {city}", dedupe_key="home")
        mind.clock.days(1)
    await mind.says("I live in Berlin", kind="PREFERENCE")
    assert len(await mind.memories.forget("default", "ann", last)) == 3
    assert await mind.holds() == []
    assert await rows(mind.db, "SELECT content FROM memories WHERE content <> ''") == [("I live in Bonn",)]


async def test_forgetting_one_member_of_a_merge_leaves_what_the_others_said(mind: UserMemories) -> None:
    merged = {"strategy": "MERGE", "dedupe_key": "pets"}
    candidates = [
        extracted(n, f"I have a {pet}", n, value=pet, **merged) for n, pet in enumerate(["cat", "dog", "fish"], 1)
    ]
    await mind.memories.remember_many("default", "ann", candidates)
    mind.clock.days(3)
    assert await mind.holds() == ["I have a cat; I have a dog; I have a fish"]
    await mind.memories.forget("default", "ann", candidates[1].id)
    assert await mind.holds() == ["I have a cat", "I have a fish"]
    assert await rows(mind.db, "SELECT 1 FROM memories WHERE content LIKE '%%dog%%'") == []
    await mind.settled("entities")
    assert await rows(mind.db, "SELECT event_id FROM forgotten_turns") == [(UUID(int=2),)]


async def test_forgetting_more_memories_than_fit_into_one_write_forgets_all(mind: UserMemories) -> None:
    texts = [f"I like tea number {n}" for n in range(MAX_FORGOTTEN_PER_WRITE + 2)]
    await mind.log.append_many([recorded(text) for text in texts])
    kept, *others = [memory_id(text) for text in texts]
    intervals = tuple(
        Interval(memory_id=other, valid_to=MAY_8, replaced_by=kept, reason="duplicate") for other in others
    )
    made = MemoriesCompacted(method="dedupe", members=(kept, *others), kept=kept, intervals=intervals, similarity=0.95)
    await mind.log.append(event(made, thread=ANN))
    await mind.settled("memories")
    gone = await mind.memories.forget("default", "ann", others[0])
    assert (set(gone), gone[-1]) == ({kept, *others}, others[0])
    await mind.settled("memories")
    assert await rows(mind.db, "SELECT content FROM memories WHERE content <> ''") == []


async def test_forgetting_the_memories_of_a_question_settles_it(mind: UserMemories) -> None:
    ask = {"strategy": "ASK_USER", "dedupe_key": "home"}
    old = await mind.says("Berlin", **ask)
    mind.clock.days(1)
    await mind.says("Bonn", **ask)
    await mind.memories.forget("default", "ann", old)
    assert await mind.holds() == ["Bonn"]
    assert await conflicts(mind.db, "default", ANN) == []
    mind.clock.days(1)
    waiting = await mind.says("Rome", **ask)
    await mind.memories.forget("default", "ann", waiting)
    assert await mind.holds() == ["Bonn"]
    assert await conflicts(mind.db, "default", ANN) == []
    [question] = await rows(mind.db, "SELECT DISTINCT question FROM memory_conflicts")
    assert question == ("",)


async def test_the_same_words_can_be_remembered_again_after_they_were_forgotten(mind: UserMemories) -> None:
    old = await mind.says("I like tea")
    await mind.memories.forget("default", "ann", old)
    assert (await mind.memories.remember("default", "ann", "I like tea")).what == "recorded"
    assert await mind.holds() == ["I like tea"]
