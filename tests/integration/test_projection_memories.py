"""The read model `memories` has the memories of users with their validity and sources."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from helpers.projection_spec import Spec
from helpers.sample_events import GPA, MAY_8, SOURCE, event

from turnlog.events.contracts import (
    CompactionUndone,
    EndReason,
    Erased,
    Event,
    EventData,
    Interval,
    MemoriesAccessed,
    MemoriesCompacted,
    MemoriesEmbedded,
    MemoriesExtracted,
    MemoriesReviewed,
    MemoriesRevised,
    Memory,
    MemoryArchived,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRated,
    MemoryRecorded,
    ThreadDeleted,
)
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.projection import MEMORIES
from turnlog.projectors.models.memories.text import content_key

OLD, NEW, THIRD = UUID(int=1), UUID(int=2), UUID(int=3)
STATE = "SELECT content, status, valid_to, replaced_by, closed_reason FROM memories ORDER BY id"
WORTH = "SELECT importance, importance_at, confidence, access_count, last_accessed_at FROM memories ORDER BY id"
CACHED = (
    "DELETE FROM embedding_cache; INSERT INTO embedding_cache (model, text_hash, embedding) "
    "SELECT 'm', sha256(convert_to('GPA is 3.80', 'UTF8')), '[1,0,0]'"
)


def at(minutes: int) -> datetime:
    return MAY_8 + timedelta(minutes=minutes)


def said(data: EventData, minutes: int = 0, **attributes: Any) -> Event:
    return event(data, "memories/ann", minutes, user="ann", **attributes)


def memory(id_: UUID = OLD, content: str = "GPA is 3.80", **fields: Any) -> Memory:
    return GPA.model_copy(update={"id": id_, "content": content, **fields})


def recorded(remembered: Memory, *intervals: Interval, minutes: int = 0) -> Event:
    return said(MemoryRecorded(memory=remembered, intervals=intervals), minutes)


def closed(id_: UUID, by: UUID | None = NEW, reason: EndReason = "superseded", minutes: int = 5) -> Interval:
    return Interval(memory_id=id_, valid_to=at(minutes), replaced_by=by, reason=reason)


async def test_a_memory_keeps_its_words_their_source_and_its_interval(db: Connection) -> None:
    await (
        Spec(db, MEMORIES)
        .when(recorded(memory(entities=('"odd", name', "斯坦福"))))
        .then(
            "SELECT thread_id, user_id, seq, kind, value, terms, content_key, dedupe_key, sources -> 0 ->> 'quote', "
            "entities, valid_from, expires_at, confirmed_at FROM memories",
            [
                (
                    *("memories/ann", "ann", 10, "FACT", "3.80", ["gpa", "3.80", "3", "80"]),
                    *(content_key("FACT", "gpa  is ３.80."), "gpa", "my GPA is 3.8", ['"odd", name', "斯坦福"]),
                    *(MAY_8, MAY_8 + timedelta(days=365), MAY_8),
                )
            ],
        )
    )


async def test_a_newer_memory_closes_the_older_one_and_a_losing_one_is_closed_at_once(db: Connection) -> None:
    await (
        Spec(db, MEMORIES)
        .given(recorded(memory()), recorded(memory(NEW, "GPA is 3.90"), closed(OLD)))
        .when(recorded(memory(THIRD, "GPA is 3.10"), closed(THIRD, NEW, minutes=2)))
        .then(
            STATE,
            [
                ("GPA is 3.80", "closed", at(5), NEW, "superseded"),
                ("GPA is 3.90", "valid", None, None, None),
                ("GPA is 3.10", "closed", at(2), NEW, "superseded"),
            ],
        )
    )


async def test_an_interval_reaches_no_memory_that_is_recorded_after_it(db: Connection) -> None:
    spec = Spec(db, MEMORIES).given(said(MemoriesRevised(intervals=(closed(OLD),)))).when(recorded(memory()))
    await spec.then(STATE, [("GPA is 3.80", "valid", None, None, None)])


async def test_a_closed_memory_is_valid_again_when_it_is_revised(db: Connection) -> None:
    spec = Spec(db, MEMORIES).given(recorded(memory()), recorded(memory(NEW, "GPA is 3.90"), closed(OLD)))
    reverted = MemoriesRevised(intervals=(Interval(memory_id=OLD), closed(NEW, OLD, "reverted", 9)))
    await spec.when(said(reverted)).then(
        STATE,
        [("GPA is 3.80", "valid", None, None, None), ("GPA is 3.90", "closed", at(9), OLD, "reverted")],
    )


async def test_a_repeated_statement_adds_a_source_and_renews_the_time_to_live(db: Connection) -> None:
    later = SOURCE.model_copy(update={"event_id": UUID(int=42), "seq": 42, "said_at": at(60), "quote": "GPA：3.8"})
    confirmed = [
        said(MemoryConfirmed(memory_id=OLD, source=source, importance=0.97, confidence=0.95), 90)
        for source in (later, SOURCE, later)
    ]
    spec = Spec(db, MEMORIES).given(recorded(memory())).when(*confirmed)
    await spec.then(WORTH, [(0.97, at(90), 0.95, 0, None)])
    await spec.then(
        "SELECT confirmed_at, expires_at, jsonb_array_length(sources), sources -> 1 ->> 'quote' FROM memories",
        [(at(60), at(60) + timedelta(days=365), 2, "GPA：3.8")],
    )


async def test_a_source_from_an_earlier_time_moves_the_begin_of_validity(db: Connection) -> None:
    earlier = SOURCE.model_copy(update={"event_id": UUID(int=42), "said_at": at(-60)})
    confirmed = MemoryConfirmed(
        memory_id=NEW, source=earlier, importance=0.97, confidence=0.95, intervals=(closed(OLD, minutes=-60),)
    )
    spec = Spec(db, MEMORIES).given(recorded(memory()), recorded(memory(NEW, "GPA is 3.90"))).when(said(confirmed))
    await spec.then(
        "SELECT valid_from, valid_to, confirmed_at, expires_at FROM memories ORDER BY id",
        [
            (MAY_8, at(-60), MAY_8, MAY_8 + timedelta(days=365)),
            (at(-60), None, MAY_8, MAY_8 + timedelta(days=365)),
        ],
    )


async def test_a_late_import_begins_to_decay_at_the_import(db: Connection) -> None:
    spec = Spec(db, MEMORIES).when(recorded(memory(), minutes=5_000))
    await spec.then("SELECT importance_at, created_at, confirmed_at FROM memories", [(at(5_000), at(5_000), MAY_8)])


async def test_ratings_and_accesses_are_counted_and_nothing_decays_here(db: Connection) -> None:
    await (
        Spec(db, MEMORIES)
        .given(recorded(memory()), recorded(memory(NEW, "GPA is 3.90")))
        .when(
            said(MemoryRated(memory_id=OLD, importance=0.5), 30),
            said(MemoriesAccessed(memory_ids=(OLD, NEW)), 40),
            said(MemoriesAccessed(memory_ids=(OLD, THIRD)), 35),
        )
        .then(WORTH, [(0.5, at(30), 0.9, 2, at(40)), (0.95, MAY_8, 0.9, 1, at(40))])
    )


async def test_a_memory_archived_by_hand_has_the_last_reason_given(db: Connection) -> None:
    archived = said(MemoryArchived(memory_id=OLD, reason="I have moved"), 30)
    again = said(MemoryArchived(memory_id=OLD, reason="sold"), 40)
    spec = Spec(db, MEMORIES).given(recorded(memory())).when(archived, again)
    await spec.then("SELECT status, archived_at, archived_reason FROM memories", [("archived", at(30), "sold")])


async def test_an_archived_memory_that_is_valid_again_has_no_reason(db: Connection) -> None:
    archived = said(MemoryArchived(memory_id=OLD, reason="I have moved"), 30)
    revived = said(MemoriesRevised(intervals=(Interval(memory_id=OLD),)), 40)
    spec = Spec(db, MEMORIES).given(recorded(memory()), archived).when(revived)
    await spec.then("SELECT status, archived_at, archived_reason FROM memories", [("valid", None, None)])


async def test_a_forgotten_memory_has_no_reason_and_a_closed_one_is_not_archived(db: Connection) -> None:
    archived = said(MemoryArchived(memory_id=OLD, reason="I have moved"), 30)
    late = said(MemoryArchived(memory_id=NEW, reason="too late"), 35)
    spec = Spec(db, MEMORIES).given(
        recorded(memory()), recorded(memory(NEW, "GPA is 3.90"), closed(NEW, OLD)), archived
    )
    await spec.when(late, said(MemoryForgotten(memory_id=OLD), 40)).then(
        "SELECT status, archived_reason FROM memories ORDER BY id", [("forgotten", None), ("closed", None)]
    )


async def test_a_forgotten_memory_leaves_an_id_an_interval_and_a_hash(db: Connection) -> None:
    spec = Spec(db, MEMORIES, setup=CACHED).given(
        recorded(memory(), closed(OLD, THIRD)),
        said(MemoriesEmbedded(model="m", dimensions=3, memory_ids=(OLD,))),
        said(
            MemoryConflictRaised(
                conflict_id=UUID(int=9), memory=memory(NEW, "GPA is 3.90"), against=(OLD,), question="3.90, not 3.80?"
            )
        ),
    )
    gone = spec.when(
        said(MemoryForgotten(memory_id=OLD), 20),
        said(MemoryConfirmed(memory_id=OLD, source=SOURCE, importance=1, confidence=1), 21),
        said(MemoriesEmbedded(model="m", dimensions=3, memory_ids=(OLD,)), 22),
        said(MemoriesRevised(intervals=(Interval(memory_id=OLD, reason="forgotten"),)), 23),
    )
    await gone.then(
        "SELECT content, category, value, terms, dedupe_key, entities, embedding::text, embedding_model, "
        "sources -> 0 ->> 'quote', "
        f"sources -> 0 ->> 'seq', status, content_key, importance FROM memories WHERE id = '{OLD}'",
        [("", None, None, [], None, [], None, None, "", "41", "forgotten", content_key("FACT", "GPA is 3.80"), 0.95)],
    )
    await gone.then("SELECT question FROM memory_conflicts", [("",)])


async def test_a_memory_that_ended_before_it_was_forgotten_keeps_its_end(db: Connection) -> None:
    gone = Spec(db, MEMORIES).given(recorded(memory(), closed(OLD))).when(said(MemoryForgotten(memory_id=OLD), 20))
    await gone.then("SELECT status, valid_to FROM memories", [("forgotten", at(5))])


async def test_a_question_waits_with_its_memory_until_it_is_answered(db: Connection) -> None:
    asked = Spec(db, MEMORIES).given(
        recorded(memory()),
        said(
            MemoryConflictRaised(
                conflict_id=UUID(int=9), memory=memory(NEW, "GPA is 3.90"), against=(OLD,), question="3.90 now?"
            )
        ),
    )
    questions = "SELECT memory_id, against, question, answer, answered_at FROM memory_conflicts"
    await asked.then(questions, [(NEW, [OLD], "3.90 now?", None, None)])
    await asked.then("SELECT status FROM memories ORDER BY id", [("valid",), ("pending",)])
    answered = asked.when(
        said(
            MemoryConflictAnswered(
                conflict_id=UUID(int=9), answer="new", intervals=(closed(OLD), Interval(memory_id=NEW))
            ),
            5,
        )
    )
    await answered.then(questions, [(NEW, [OLD], "3.90 now?", "new", at(5))])
    await answered.then("SELECT status FROM memories ORDER BY id", [("closed",), ("valid",)])


async def test_the_daily_job_archives_expires_and_deletes(db: Connection) -> None:
    ids = [UUID(int=n) for n in range(1, 7)]
    reviewed = MemoriesReviewed(
        due_at=at(90), archived=(ids[0], ids[1]), expired=(ids[2], ids[3]), deleted=(ids[4], ids[5])
    )
    await (
        Spec(db, MEMORIES)
        .given(*(recorded(memory(id_, expires_at=None if n % 2 else at(80))) for n, id_ in enumerate(ids[:5])))
        .given(said(MemoriesRevised(intervals=(closed(ids[1]),))))
        .when(said(reviewed), said(MemoriesAccessed(memory_ids=(ids[4],))), recorded(memory(ids[5])))
        .then(
            "SELECT id, status, valid_to, closed_reason, archived_at FROM memories ORDER BY id",
            [
                (ids[0], "archived", None, None, at(90)),
                (ids[1], "closed", at(5), "superseded", None),
                (ids[2], "closed", at(80), "expired", None),
                (ids[3], "closed", at(90), "expired", None),
                (ids[5], "valid", None, None, None),
            ],
        )
    )


async def test_an_archived_memory_that_is_valid_again_is_no_longer_archived(db: Connection) -> None:
    spec = Spec(db, MEMORIES).given(recorded(memory()), said(MemoriesReviewed(due_at=at(90), archived=(OLD,))))
    spec = spec.when(said(MemoriesRevised(intervals=(Interval(memory_id=OLD),))))
    await spec.then("SELECT status, archived_at FROM memories", [("valid", None)])


async def test_members_of_a_compaction_end_and_are_valid_again_after_an_undo(db: Connection) -> None:
    merged = MemoriesCompacted(
        method="merge",
        members=(OLD, NEW),
        memory=memory(THIRD, "GPA is 3.80 or so", sources=()),
        intervals=(closed(OLD, THIRD, "merged"), closed(NEW, THIRD, "merged")),
        similarity=0.95,
    )
    compaction = said(merged, 5)
    spec = Spec(db, MEMORIES).given(recorded(memory()), recorded(memory(NEW, "GPA: 3.80")), compaction)
    compactions = "SELECT event_id, method, members, kept, made, undone_at FROM memory_compactions"
    await spec.then(compactions, [(compaction.id, "merge", [OLD, NEW], None, THIRD, None)])
    await spec.then("SELECT status FROM memories ORDER BY id", [("closed",), ("closed",), ("valid",)])
    undone = spec.when(
        said(
            CompactionUndone(
                compaction_id=compaction.id,
                made=THIRD,
                intervals=(Interval(memory_id=OLD), Interval(memory_id=NEW)),
            ),
            9,
        )
    )
    await undone.then(compactions, [(compaction.id, "merge", [OLD, NEW], None, THIRD, at(9))])
    await undone.then(
        "SELECT status, valid_to, closed_reason FROM memories ORDER BY id",
        [("valid", None, None), ("valid", None, None), ("closed", at(9), "reverted")],
    )


async def test_vectors_come_from_the_cache_of_the_named_model(db: Connection) -> None:
    spec = Spec(db, MEMORIES, setup=CACHED).given(recorded(memory()), recorded(memory(NEW, "GPA is 3.90")))
    spec = spec.when(said(MemoriesEmbedded(model="m", dimensions=3, memory_ids=(OLD, NEW))))
    await spec.then(
        "SELECT embedding::text, embedding_model FROM memories ORDER BY id", [("[1,0,0]", "m"), (None, None)]
    )


async def test_a_conversations_progress_only_grows_and_counts_add_up(db: Connection) -> None:
    looks = [
        said(
            MemoriesExtracted(
                conversation="c",
                stage="llm",
                from_seq=1,
                through_seq=seq,
                extractor=extractor,
                found=2,
                stored=1,
                error=e,
            ),
            minutes,
        )
        for minutes, (seq, extractor, e) in enumerate([(40, "a", "away"), (30, "b", None)])
    ]
    await (
        Spec(db, MEMORIES)
        .when(*looks)
        .then(
            "SELECT conversation, stage, user_id, through_seq, extractor, found, stored, error, extracted_at "
            "FROM memory_extractions",
            [("c", "llm", "ann", 40, "b", 4, 2, None, at(1))],
        )
    )


async def test_of_two_memories_with_one_id_the_first_stays(db: Connection) -> None:
    spec = Spec(db, MEMORIES).when(recorded(memory()), recorded(memory(content="other")))
    await spec.then("SELECT content FROM memories", [("GPA is 3.80",)])


async def test_a_memory_thread_that_is_removed_leaves_no_row(db: Connection) -> None:
    for removal in (ThreadDeleted(), Erased()):
        raised = MemoryConflictRaised(conflict_id=NEW, memory=memory(NEW), against=(OLD,), question="?")
        spec = Spec(db, MEMORIES).given(recorded(memory()), said(raised)).when(said(removal))
        await spec.then("SELECT tenant FROM memories UNION SELECT tenant FROM memory_conflicts", [])


async def test_trials_and_tenants_are_separate(db: Connection) -> None:
    shadow = event(MemoryRecorded(memory=memory(), intervals=()), "shadow/new/memories/ann", user="ann")
    spec = Spec(db, MEMORIES).given(recorded(memory()), shadow).when(said(MemoryForgotten(memory_id=OLD)))
    spec = spec.when(said(MemoryForgotten(memory_id=OLD), tenant="acme"))
    await spec.then(
        "SELECT thread_id, status FROM memories ORDER BY 1",
        [("memories/ann", "forgotten"), ("shadow/new/memories/ann", "valid")],
    )
