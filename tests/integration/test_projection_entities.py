"""The read model `entities` has a row per type and name, and `job_runs` a row per job and due time."""

from datetime import timedelta
from uuid import UUID

import pytest
from helpers.projection_spec import Spec
from helpers.sample_events import MAY_8, SOURCE, event

from turnlog.events.contracts import (
    EntitiesCleared,
    EntitiesFound,
    Entity,
    EntityRelation,
    Event,
    JobRan,
    MemoryForgotten,
    MemorySource,
    ThreadDeleted,
)
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.entities import ENTITIES
from turnlog.projectors.models.memories.sql import MAX_SOURCES
from turnlog.projectors.models.operations.jobs import JOBS

pytestmark = pytest.mark.slow

LATER = SOURCE.model_copy(update={"event_id": UUID(int=42), "said_at": MAY_8 + timedelta(days=1)})
LIKES, APPLIED = EntityRelation(type="interested_in", target="Ann"), EntityRelation(type="applied_to", target="Ann")
ROWS = "SELECT type, name, description, mention_count FROM entities ORDER BY 1, 2"


def entities_found(*entities: Entity, thread: str = "memories/ann") -> Event:
    return event(EntitiesFound(entities=entities), thread, user="ann")


def school(name: str = "Stanford", **fields: object) -> Entity:
    return Entity.model_validate({"type": "SCHOOL", "name": name, **fields})


async def test_case_and_width_make_no_second_entity_but_another_type_does(db: Connection) -> None:
    person = Entity(type="PERSON", name="Stanford")
    await (
        Spec(db, ENTITIES)
        .given(entities_found(school(), school("ＳＴＡＮＦＯＲＤ"), person), entities_found(school("斯坦福")))
        .when(entities_found(school("stanford "), thread="memories/bob"))
        .then(
            ROWS,
            [
                ("PERSON", "Stanford", None, 1),
                ("SCHOOL", "Stanford", None, 2),
                ("SCHOOL", "stanford ", None, 1),
                ("SCHOOL", "斯坦福", None, 1),
            ],
        )
    )


async def test_cleared_entities_are_gone_and_later_ones_begin_again(db: Connection) -> None:
    await (
        Spec(db, ENTITIES)
        .given(entities_found(school(), school("MIT")), entities_found(school(), thread="memories/bob"))
        .when(event(EntitiesCleared(), "memories/ann", user="ann"), entities_found(school()))
        .then(
            "SELECT thread_id, name, mention_count FROM entities ORDER BY 1",
            [("memories/ann", "Stanford", 1), ("memories/bob", "Stanford", 1)],
        )
    )


async def test_the_newest_description_stays_and_attributes_relations_and_sources_add_up(db: Connection) -> None:
    first = school(description="A dream", attributes={"round": "ED", "notes": None}, relations=(LIKES, LIKES))
    second = school(attributes={"round": "RD"}, relations=(APPLIED, LIKES), sources=(LATER, SOURCE, LATER))
    third = school(description="Admitted", sources=(SOURCE,))
    await (
        Spec(db, ENTITIES)
        .given(entities_found(first.model_copy(update={"sources": (SOURCE,)})))
        .when(entities_found(second), entities_found(third))
        .then(
            "SELECT description, attributes, relations, jsonb_path_query_array(sources, '$[*].said_at'), "
            "mention_count, first_seen_at, last_seen_at FROM entities",
            [
                (
                    "Admitted",
                    {"round": "RD", "notes": None},
                    [LIKES.model_dump(), APPLIED.model_dump()],
                    ["2023-05-08T13:56:00Z", "2023-05-09T13:56:00Z"],
                    *(3, MAY_8, LATER.said_at),
                )
            ],
        )
    )


async def test_a_very_long_name_parks_no_event(db: Connection) -> None:
    spec = Spec(db, ENTITIES).when(entities_found(school("名" * 5_000), school("名" * 5_001), school("  ")))
    await spec.then("SELECT count(*) FROM entities", [(3,)])


async def test_a_removed_thread_leaves_no_entity(db: Connection) -> None:
    spec = Spec(db, ENTITIES).given(entities_found(school())).when(event(ThreadDeleted(), "memories/ann"))
    await spec.then(ROWS, [])


EN, ZH = "My sister Mia is allergic to nuts", "我妹妹米娅对花生过敏"
WORDS = "SELECT name, description, attributes, relations, jsonb_path_query_array(sources, '$[*].quote') FROM entities"


def told(turn: int, quote: str) -> MemorySource:
    said_at = MAY_8 + timedelta(days=turn)
    return MemorySource(thread="chat", seq=turn, event_id=UUID(int=turn), quote=quote, said_at=said_at)


def sister(name: str, *turns: MemorySource, secret: str | None = None) -> Entity:
    words = {"description": secret, "attributes": {"allergy": secret}, "relations": (APPLIED,)} if secret else {}
    return Entity.model_validate({"type": "PERSON", "name": name, "sources": turns, **words})


def forgot(*turns: int, thread: str = "memories/ann") -> Event:
    source_ids = tuple(UUID(int=turn) for turn in turns)
    return event(MemoryForgotten(memory_id=UUID(int=99), source_ids=source_ids), thread, user="ann")


@pytest.mark.parametrize(("name", "words"), [("Mia", EN), ("米娅", ZH)])
async def test_an_entity_only_of_forgotten_turns_is_removed_in_any_order_of_events(
    db: Connection, name: str, words: str
) -> None:
    secret = sister(name, told(1, words), secret=words)
    other = sister("Leo", told(2, "Leo plays chess"), secret="chess")
    for events in (
        (entities_found(secret, other), forgot(1)),
        (forgot(1), entities_found(secret, other)),
        (entities_found(secret), forgot(1, 1)),
    ):
        await Spec(db, ENTITIES).given(*events).then(f"{WORDS} WHERE name <> 'Leo'", [])
        await (
            Spec(db, ENTITIES)
            .given(*events, entities_found(other))
            .then("SELECT description FROM entities", [("chess",)])
        )


@pytest.mark.parametrize(("name", "words"), [("Mia", EN), ("米娅", ZH)])
async def test_an_entity_with_another_source_keeps_its_name_and_the_other_quote(
    db: Connection, name: str, words: str
) -> None:
    first, second = sister(name, told(1, words), secret=words), sister(name, told(2, f"{name} visits"))
    both = sister(name, told(2, f"{name} visits"), told(1, words), secret=words)
    left = [(name, None, {}, [], [f"{name} visits"])]
    for events in (
        *((entities_found(first, second), forgot(1)), (entities_found(first), forgot(1), entities_found(second))),
        *(
            (forgot(1), entities_found(first), entities_found(second)),
            (entities_found(both), forgot(1)),
            (forgot(1), entities_found(both)),
        ),
    ):
        await Spec(db, ENTITIES).given(*events).then(WORDS, left)
    again = sister(name, told(3, "said anew"), secret="anew")
    spec = Spec(db, ENTITIES).given(entities_found(first), forgot(1)).when(entities_found(again))
    await spec.then(WORDS, [(name, "anew", {"allergy": "anew"}, [APPLIED.model_dump()], ["said anew"])])


async def test_forgetting_two_memories_removes_an_entity_of_both_turns(db: Connection) -> None:
    mia = sister("Mia", told(1, EN), told(2, ZH), secret=EN)
    for events in (
        (entities_found(mia), forgot(1), forgot(2)),
        (forgot(2), entities_found(mia), forgot(1)),
        (entities_found(mia), forgot(2, 1)),
    ):
        await Spec(db, ENTITIES).given(*events).then(WORDS, [])


async def test_forgetting_touches_no_other_thread_and_no_entity_without_a_source(db: Connection) -> None:
    mia, bare = sister("Mia", told(1, EN), secret=EN), sister("Yale", secret="a school")
    shadow = entities_found(mia, thread="shadow/new/ann")
    spec = Spec(db, ENTITIES).given(entities_found(mia, bare), shadow, forgot(1), forgot())
    query = "SELECT thread_id, name, description FROM entities ORDER BY 1"
    await spec.then(query, [("memories/ann", "Yale", "a school"), ("shadow/new/ann", "Mia", EN)])
    await spec.when(forgot(1, thread="shadow/new/ann")).then(query, [("memories/ann", "Yale", "a school")])


async def test_an_entity_with_too_many_sources_shows_nothing_that_may_be_forgotten(
    db: Connection,
) -> None:
    often = sister("Mia", *(told(n, f"Mia said {n}") for n in range(2, MAX_SOURCES + 2)))
    spec = (
        Spec(db, ENTITIES)
        .given(entities_found(often), entities_found(sister("Mia", told(1, EN), secret=EN)))
        .when(forgot(1))
    )
    query = "SELECT description, attributes, relations, jsonb_array_length(sources) FROM entities"
    await spec.then(query, [(None, {}, [], MAX_SOURCES)])


async def test_a_removed_thread_leaves_no_forgotten_turn(db: Connection) -> None:
    spec = Spec(db, ENTITIES).given(forgot(1), event(ThreadDeleted(), "memories/ann"))
    await spec.when(entities_found(sister("Mia", told(1, EN)))).then("SELECT name FROM entities", [("Mia",)])
    await spec.then("SELECT 1 FROM forgotten_turns", [])


async def test_a_job_has_one_row_for_each_due_time(db: Connection) -> None:
    ran = [
        event(JobRan(job="decay", due_at=MAY_8 + timedelta(days=n), duration_ms=1.5, counts={"archived": n}), "jobs", n)
        for n in (0, 1, 1)
    ]
    spec = Spec(db, JOBS).when(*ran)
    await spec.then(
        "SELECT job, due_at, counts, errors FROM job_runs ORDER BY due_at",
        [("decay", MAY_8, {"archived": 0}, 0), ("decay", MAY_8 + timedelta(days=1), {"archived": 1}, 0)],
    )
