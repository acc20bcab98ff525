"""Tests edge cases of memories: a time to live that just ends, late arrivals, more than one question."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from helpers.dated_claims import DecidedMemories, claim, day, decided

from turnlog.agent.memory.deciding.policy import SEED, fate, importance_now
from turnlog.agent.memory.deciding.revisions import Forgetting, answered, closing_answers, combined, edited
from turnlog.events.contracts import Memory, MemoryConflictRaised
from turnlog.projectors.models.memories.lookup import Conflict, StoredMemory

ONE, TWO = UUID(int=1), UUID(int=2)


def score(value: str, on: float, **fields: Any) -> Memory:
    return claim(f"SAT {value}", on, value=value, dedupe_key="sat", **{"strategy": "KEEP_HIGHEST", **fields})


def row(on: float = 0, **fields: Any) -> StoredMemory:
    """Returns the row of a memory that was said and recorded on a day."""
    return replace(decided([claim("Lives in Bonn", on)]).rows[0], importance_at=day(on), **fields)


def ask(*sayings: tuple[str, float]) -> tuple[DecidedMemories, list["RaisedQuestion"]]:
    after = decided([score(value, on, strategy="ASK_USER") for value, on in sayings])
    raised = [event for event in after.events if isinstance(event, MemoryConflictRaised)]
    return after, [RaisedQuestion(event.conflict_id, event.memory.id, event.against) for event in raised]


@dataclass(frozen=True)
class RaisedQuestion:
    conflict_id: UUID
    memory_id: UUID
    against: Sequence[UUID]


@pytest.mark.parametrize(("after", "is_fate"), [(180, "keep"), (181, "archive"), (365, "archive"), (366, "delete")])
def test_an_age_of_exactly_the_limit_is_within_it(after: float, is_fate: str) -> None:
    assert fate(row(), day(after), replace(SEED, decay_rate=0)) == is_fate


def test_an_importance_of_exactly_the_threshold_is_kept() -> None:
    assert fate(row(importance=SEED.archive_threshold), day(0)) == "keep"


def test_accesses_add_to_importance_up_to_their_bound() -> None:
    assert importance_now(row(importance=0.5, access_count=5), day(0)) == pytest.approx(0.6)
    assert importance_now(row(importance=0.5, access_count=100), day(0)) == pytest.approx(0.8)


def test_a_memory_that_expires_when_it_is_repeated_is_not_extended() -> None:
    after = decided([claim("喜欢喝茶", 0, expires_at=day(10)), claim("喜欢喝茶", 10)])
    assert len(after.rows) == 2


def test_a_memory_that_expires_when_another_begins_does_not_compete_with_it() -> None:
    after = decided([score("1500", 0, expires_at=day(10)), score("1400", 10)])
    assert [row.valid_to for row in after.rows] == [None, None], "the daily job sees to times to live"


def test_an_earlier_memory_with_a_key_replaces_its_duplicate_without_a_key() -> None:
    after = decided([claim("SAT 1500", 5), score("1500", 2)])
    [keyed, plain] = after.rows
    assert (keyed.status, plain.closed_reason, plain.valid_to) == ("valid", "duplicate", plain.valid_from)


def test_a_repetition_before_expiry_extends_a_memory_against_a_later_rival() -> None:
    after = decided([score("1500", 0, expires_at=day(10)), score("1400", 12), score("1500", 8, expires_at=day(18))])
    assert after.row(after.rows[0].id).expires_at == day(18)
    assert after.on(13) == ["SAT 1500"]


def test_a_memory_that_lost_to_one_forgotten_since_ends_no_other() -> None:
    after = decided([score("1600", 1), score("1500", 2)])
    after.put(replace(after.rows[0], status="forgotten", dedupe_key=None))
    assert after.say(score("1400", 1.5)).valid == ["SAT 1400"]


def test_a_merge_starts_over_when_a_member_has_expired() -> None:
    tags = {"dedupe_key": "likes", "strategy": "MERGE"}
    after = decided([claim("tea", 0, expires_at=day(5), **tags), claim("cake", 9, **tags), claim("figs", 10, **tags)])
    assert after.valid[-1] == "cake; figs"


def test_an_answer_ends_a_later_rejected_memory_at_its_beginning() -> None:
    after, [question] = ask(("1400", 5), ("1500", 2))
    after.apply(answered(question, after.rows, "new", day(6)))
    [new, old] = after.rows
    assert (new.status, old.valid_to, old.replaced_by) == ("valid", old.valid_from, new.id)


def test_the_second_of_two_answers_ends_the_memory_chosen_by_the_first() -> None:
    after, [first, second] = ask(("1300", 0), ("1400", 1), ("1500", 2))
    for question in (first, second):
        after.apply(answered(question, after.rows, "new", day(6)))
    assert after.valid == ["SAT 1500"]


def test_an_edit_keeps_the_time_to_live_of_the_edited_memory() -> None:
    [old] = decided([score("1400", 0, expires_at=day(10))]).rows
    assert edited(old, ONE, "SAT 1410", day(8)).memory.expires_at == day(18)


def test_a_question_stays_open_while_one_of_its_earlier_memories_remains() -> None:
    question = Conflict(UUID(int=9), UUID(int=3), [ONE, TWO], "?", day(0), None, None)
    assert closing_answers([ONE], [question]) == []
    [done] = closing_answers([ONE, TWO], [question])
    assert (done.answer, [interval.memory_id for interval in done.intervals]) == ("new", [UUID(int=3)])


def test_combined_forgettings_restore_no_memory_that_one_of_them_forgets() -> None:
    assert combined([Forgetting((ONE,), (TWO,)), Forgetting((TWO,), ())]) == Forgetting((ONE, TWO), ())
