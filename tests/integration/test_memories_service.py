"""Adding memories: decisions use the thread's end, events are appended atomically, and all readers see them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
from conftest import Settled
from helpers.sample_events import MAY_8, SOURCE, event
from helpers.servers import rows
from helpers.user_memories import ANN, UserMemories, extracted, gpa, open_user_memories

from turnlog.agent.memory.deciding.by_hand import InvalidMemory
from turnlog.agent.memory.deciding.revisions import MemoryNotInUse, NothingToRevert, QuestionSettled
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.deciding.writing import MemoriesParked
from turnlog.events.contracts import EntitiesFound, Entity, MemoriesExtracted, ThreadDeleted
from turnlog.events.errors import InvalidEvent, NotFound
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread, publish_subject
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.entities_lookup import entities_of
from turnlog.projectors.models.memories.extraction_lookup import extraction_progress
from turnlog.projectors.models.memories.history_lookup import history
from turnlog.projectors.models.memories.lookup import conflicts, memories_as_of, valid_memories

NOWHERE = UUID(int=404)


@pytest.fixture
async def mind(
    log: Log, db: Connection, settled: Settled, database_url: str, running_projectors: Runner
) -> AsyncIterator[UserMemories]:
    async with open_user_memories(log, db, settled, database_url) as opened:
        yield opened


async def test_a_memory_is_valid_and_repeating_it_adds_no_other(mind: UserMemories) -> None:
    first = await mind.memories.remember("default", "ann", "  I live in Berlin. ", "FACT", category="home")
    again = await mind.memories.remember("default", "ann", "i live in  Berlin")
    assert (first.what, again.what, again.memory_id) == ("recorded", "known", first.memory_id)
    assert await mind.holds() == ["I live in Berlin."]
    row = await mind.row(first.memory_id)
    assert (row.origin, row.confidence, row.category, row.valid_from) == ("user", 1.0, "home", MAY_8)


async def test_users_tenants_and_trials_are_separate(mind: UserMemories) -> None:
    await mind.says("I live in Berlin")
    await mind.memories.remember("default", "bob", "I live in Rome")
    await mind.memories.remember("acme", "ann", "I live in Paris")
    [outcome] = await mind.memories.remember_many("default", "ann", [extracted(1, "I live in Oslo")], shadow="new")
    assert outcome.what == "recorded"
    assert await mind.holds() == ["I live in Berlin"]
    assert await mind.holds("bob") == ["I live in Rome"]
    memories = await valid_memories(mind.db, "default", memory_thread("ann", "new"), MAY_8)
    assert [memory.content for memory in memories] == ["I live in Oslo"]


async def test_later_candidates_of_a_call_see_the_effects_of_earlier_ones(mind: UserMemories) -> None:
    candidates = [gpa(1, "3.60"), extracted(2, "I like tea"), gpa(3, "3.80", day=1), extracted(4, "I LIKE TEA", day=2)]
    outcomes = await mind.memories.remember_many("default", "ann", candidates)
    assert [(outcome.what, outcome.memory_id.int - 1_000) for outcome in outcomes] == [
        ("recorded", 1),
        ("recorded", 2),
        ("recorded", 3),
        ("confirmed", 2),
    ]
    mind.clock.days(3)
    assert await mind.holds() == ["GPA is 3.80", "I like tea"]
    assert len((await mind.row(UUID(int=1_002))).sources) == 2
    old = await mind.row(UUID(int=1_001))
    assert (old.valid_to, old.replaced_by, old.closed_reason) == (
        MAY_8 + timedelta(days=1),
        UUID(int=1_003),
        "superseded",
    )


async def test_a_repeated_call_appends_nothing_and_returns_the_same_ids(mind: UserMemories) -> None:
    candidates = [gpa(1, "3.60"), gpa(2, "3.80", day=1), extracted(3, "I like tea")]
    extra = [
        EntitiesFound(entities=(Entity(type="SCHOOL", name="Yale", sources=(SOURCE,)),)),
        MemoriesExtracted(conversation="t", stage="rules", from_seq=1, through_seq=3, extractor="x", found=3, stored=3),
    ]
    first = await mind.memories.remember_many("default", "ann", candidates, extra)
    events = await mind.events()
    again = await mind.memories.remember_many("default", "ann", candidates, extra)
    assert [outcome.memory_id for outcome in again] == [outcome.memory_id for outcome in first]
    assert {outcome.what for outcome in again} == {"known"}
    assert await mind.events() == events
    progress = await extraction_progress(mind.db, "default", ANN, "t", "rules")
    assert progress is not None
    assert (progress.through_seq, progress.found) == (3, 3)
    [entity] = await entities_of(mind.db, "default", ANN)
    assert (entity["name"], entity["mention_count"]) == ("Yale", 1)


async def test_a_dropped_trial_can_be_made_again_under_the_same_name(mind: UserMemories) -> None:
    thread = memory_thread("ann", "new")
    looked = MemoriesExtracted(conversation="t", stage="rules", from_seq=1, through_seq=3, extractor="x", found=1)
    for _ in range(3):
        [outcome] = await mind.memories.remember_many("default", "ann", [gpa(1, "3.60")], [looked], "new")
        assert outcome.what == "recorded"
        [again] = await mind.memories.remember_many("default", "ann", [gpa(1, "3.60")], [looked], "new")
        assert again.what == "known"
        await mind.settled("memories")
        assert [memory.value for memory in await valid_memories(mind.db, "default", thread, MAY_8)] == ["3.60"]
        progress = await extraction_progress(mind.db, "default", thread, "t", "rules")
        assert progress is not None
        assert progress.found == 1
        await mind.log.append(event(ThreadDeleted(), thread))
        await mind.settled("memories")
        assert await valid_memories(mind.db, "default", thread, MAY_8) == []


async def test_a_memory_that_loses_a_conflict_is_recorded_as_ended(mind: UserMemories) -> None:
    await mind.memories.remember_many("default", "ann", [gpa(1, "3.90", strategy="KEEP_HIGHEST")])
    [outcome] = await mind.memories.remember_many("default", "ann", [gpa(2, "3.10", 1, strategy="KEEP_HIGHEST")])
    assert (outcome.what, outcome.replaced_by) == ("ended", UUID(int=1_001))
    assert await mind.holds() == ["GPA is 3.90"]


async def test_fifty_writers_at_once_lose_nothing(mind: UserMemories) -> None:
    others = [Memories(mind.log, mind.memories._writer._pool, mind.clock) for _ in range(5)]
    calls = [
        others[n % 5].remember_many(
            "default", "ann", [extracted(n, f"I own {n} boats", n), gpa(100 + n, f"3.{n:02}", n)]
        )
        for n in range(1, 51)
    ]
    mind.clock.days(50)
    outcomes = await asyncio.gather(*calls)
    assert {outcome.what for pair in outcomes for outcome in pair} <= {"recorded", "ended"}
    held = await mind.holds()
    assert len(held) == 51
    assert "GPA is 3.50" in held
    chain = await history(mind.db, "default", ANN, UUID(int=1_150))
    assert [memory.value for memory in chain] == [f"3.{n:02}" for n in range(1, 51)]
    assert [memory.valid_to for memory in chain[:-1]] == [memory.valid_from for memory in chain[1:]]


async def test_memories_can_be_asked_for_as_of_any_time(mind: UserMemories) -> None:
    await mind.memories.remember_many("default", "ann", [gpa(1, "3.60"), gpa(2, "3.80", day=10)])
    await mind.settled("memories")
    for day, expected in ((-1, []), (0, ["3.60"]), (9, ["3.60"]), (10, ["3.80"]), (99, ["3.80"])):
        memories = await memories_as_of(mind.db, "default", ANN, MAY_8 + timedelta(days=day))
        assert [memory.value for memory in memories] == expected


async def test_a_time_to_live_ends_a_memory_before_the_daily_job_sees_it(mind: UserMemories) -> None:
    await mind.says("I am in Rome", expires_at=MAY_8 + timedelta(days=3))
    assert await mind.holds() == ["I am in Rome"]
    mind.clock.days(3)
    assert await mind.holds() == []


async def test_an_edit_replaces_the_memory_that_it_corrects(mind: UserMemories) -> None:
    old = await mind.says("I live in Berlin", dedupe_key="home")
    mind.clock.days(1)
    new = await mind.memories.edit("default", "ann", old, " I live in Bonn ")
    assert await mind.memories.edit("default", "ann", new, "I live in Bonn") == new
    assert await mind.holds() == ["I live in Bonn"]
    assert [memory.content for memory in await history(mind.db, "default", ANN, new)] == [
        "I live in Berlin",
        "I live in Bonn",
    ]
    assert (await mind.row(old)).closed_reason == "edited"
    with pytest.raises(MemoryNotInUse, match=f"edit {new}, which replaced it"):
        await mind.memories.edit("default", "ann", old, "I live in Rome")


async def test_a_memory_can_be_reverted_to(mind: UserMemories) -> None:
    first = await mind.says("I live in Berlin", dedupe_key="home")
    mind.clock.days(1)
    second = await mind.says("I live in Bonn", dedupe_key="home")
    mind.clock.days(1)
    third = await mind.memories.edit("default", "ann", second, "I live in Rome")
    await mind.memories.revert("default", "ann", first)
    assert await mind.holds() == ["I live in Berlin"]
    assert [(await mind.row(id_)).closed_reason for id_ in (second, third)] == ["reverted", "reverted"]
    memories = await memories_as_of(mind.db, "default", ANN, MAY_8 + timedelta(days=1.5))
    assert [memory.content for memory in memories] == ["I live in Berlin"]
    with pytest.raises(NothingToRevert):
        await mind.memories.revert("default", "ann", first)


async def test_an_expired_memory_cannot_be_reverted_to(mind: UserMemories) -> None:
    short = gpa(1, "3.6", expires_at=MAY_8 + timedelta(days=10))
    await mind.memories.remember_many("default", "ann", [short, gpa(2, "3.7", day=5)])
    mind.clock.days(20)
    with pytest.raises(NothingToRevert, match="expired"):
        await mind.memories.revert("default", "ann", short.id)
    assert await mind.holds() == ["GPA is 3.7"]


async def test_ratings_and_accesses_are_events_and_one_cause_is_one_access(mind: UserMemories) -> None:
    id_ = await mind.says("I like tea")
    await mind.memories.rate("default", "ann", id_, 0.25)
    for cause in (UUID(int=1), UUID(int=1), None):
        await mind.memories.accessed("default", "ann", [id_, id_], cause)
    await mind.memories.accessed("default", "ann", [])
    row = await mind.row(id_)
    assert (row.importance, row.access_count, row.last_accessed_at) == (0.25, 2, MAY_8)


async def test_two_tenants_may_use_the_same_id(mind: UserMemories) -> None:
    id_ = UUID(int=7)
    for tenant, city in (("default", "Berlin"), ("other", "Rome")):
        await mind.memories.remember(tenant, "ann", f"I live in {city}", id_=id_)
    await mind.settled("memories")
    stored = await rows(mind.db, "SELECT tenant, content FROM memories ORDER BY tenant")
    assert stored == [("default", "I live in Berlin"), ("other", "I live in Rome")]


async def test_the_user_is_asked_and_the_answer_decides(mind: UserMemories) -> None:
    ask = {"strategy": "ASK_USER", "dedupe_key": "home"}
    for answer, expected in (("new", ["Bonn"]), ("old", ["Berlin"]), ("both", ["Berlin", "Bonn"])):
        user = f"ann-{answer}"
        thread = memory_thread(user)
        await mind.memories.remember("default", user, "Berlin", **ask)
        mind.clock.days(1)
        asked = await mind.memories.remember("default", user, "Bonn", **ask)
        assert asked.what == "asked"
        assert asked.conflict_id is not None
        assert "Bonn" in (asked.question or "")
        assert await mind.holds(user) == ["Berlin"]
        await mind.memories.answer("default", user, asked.conflict_id, answer)
        await mind.memories.answer("default", user, asked.conflict_id, answer)
        assert await mind.holds(user) == expected
        assert await conflicts(mind.db, "default", thread) == []
        with pytest.raises(QuestionSettled):
            await mind.memories.answer("default", user, asked.conflict_id, "old" if answer == "new" else "new")


async def test_unknown_ids_and_invalid_input_are_refused_and_store_nothing(mind: UserMemories) -> None:
    memories = mind.memories
    for call in (
        memories.edit("default", "ann", NOWHERE, "x"),
        memories.rate("default", "ann", NOWHERE, 0.5),
        memories.forget("default", "ann", NOWHERE),
        memories.revert("default", "ann", NOWHERE),
        memories.answer("default", "ann", NOWHERE, "new"),
    ):
        with pytest.raises(NotFound):
            await call
    for wrong in (
        {"content": "  "},
        {"content": "x" * 9_000},
        {"content": "x", "importance": 2},
        {"content": "x", "dedupe_key": "k" * 401},
    ):
        with pytest.raises(InvalidMemory):
            await memories.remember("default", "ann", **wrong)
    with pytest.raises(InvalidMemory):
        await memories.rate("default", "ann", NOWHERE, 1.5)
    with pytest.raises(InvalidEvent):
        await memories.remember("default", "a\ud800", "x")
    assert await mind.events() == []


async def test_a_parked_event_stops_decisions_instead_of_misleading_them(mind: UserMemories) -> None:
    await mind.says("I like tea")
    await mind.log.nc.jetstream().publish(publish_subject("default", ANN, "memory_recorded"), b"{")
    with pytest.raises(MemoriesParked):
        await mind.says("I like coffee")


async def test_more_than_one_atomic_batch_is_refused_whole(mind: UserMemories) -> None:
    with pytest.raises(ValueError, match="atomic batch"):
        await mind.memories.remember_many("default", "ann", [extracted(n, f"I own {n} boats") for n in range(1, 1_002)])
    assert await mind.events() == []


async def test_unusual_characters_park_no_event(mind: UserMemories) -> None:
    outcome = await mind.memories.remember("default", "ann", 'a\0b {"x",} \\ \'', category="a\0b")
    assert (await mind.row(outcome.memory_id)).status == "valid"
