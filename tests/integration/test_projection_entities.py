"""P8 entities and job_runs: one row per type and name, one per job and due time."""

from datetime import timedelta
from uuid import UUID

from samples import MAY_8, SAID, event
from spec import Spec

from turnlog.events.contracts import Event, ThreadDeleted
from turnlog.events.memory_contracts import EntitiesFound, Entity, EntityRelation, JobRan
from turnlog.projectors.entities import ENTITIES
from turnlog.projectors.jobs import JOBS
from turnlog.projectors.writer import Connection

LATER = SAID.model_copy(update={"event_id": UUID(int=42), "said_at": MAY_8 + timedelta(days=1)})
LIKES, APPLIED = EntityRelation(type="interested_in", target="Ann"), EntityRelation(type="applied_to", target="Ann")
ROWS = "SELECT type, name, description, mention_count FROM entities ORDER BY 1, 2"


def found(*entities: Entity, thread: str = "memories/ann") -> Event:
    return event(EntitiesFound(entities=entities), thread, user="ann")


def school(name: str = "Stanford", **fields: object) -> Entity:
    return Entity.model_validate({"type": "SCHOOL", "name": name, **fields})


async def test_case_and_width_make_no_second_entity_but_another_type_does(db: Connection) -> None:
    person = Entity(type="PERSON", name="Stanford")
    await (
        Spec(db, ENTITIES)
        .given(found(school(), school("ＳＴＡＮＦＯＲＤ"), person), found(school("斯坦福")))
        .when(found(school("stanford "), thread="memories/bob"))
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


async def test_the_newest_description_stays_and_attributes_relations_and_sources_add_up(db: Connection) -> None:
    first = school(description="A dream", attributes={"round": "ED", "notes": None}, relations=(LIKES, LIKES))
    second = school(attributes={"round": "RD"}, relations=(APPLIED, LIKES), sources=(LATER, SAID, LATER))
    third = school(description="Admitted", sources=(SAID,))
    await (
        Spec(db, ENTITIES)
        .given(found(first.model_copy(update={"sources": (SAID,)})))
        .when(found(second), found(third))
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


async def test_a_monstrous_name_is_no_poison(db: Connection) -> None:
    spec = Spec(db, ENTITIES).when(found(school("名" * 5_000), school("名" * 5_001), school("  ")))
    await spec.then("SELECT count(*) FROM entities", [(3,)])


async def test_a_removed_thread_leaves_no_entity(db: Connection) -> None:
    spec = Spec(db, ENTITIES).given(found(school())).when(event(ThreadDeleted(), "memories/ann"))
    await spec.then(ROWS, [])


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
