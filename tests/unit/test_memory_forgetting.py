"""Forgetting a memory also forgets merged memories and makes memories valid again that it had replaced."""

from collections.abc import Sequence
from dataclasses import replace

from helpers.dated_claims import DecidedMemories, claim, day

from turnlog.agent.memory.deciding.revisions import (
    closing_answers,
    forgetting,
    forgotten_events,
    newer_version,
)
from turnlog.agent.memory.deciding.semantic_conflicts import resolve_near_duplicate
from turnlog.events.contracts import EndReason, Interval, MemoriesRevised
from turnlog.projectors.models.memories.lookup import Conflict, StoredMemory


def chain(*links: tuple[str, str | None, EndReason | None]) -> dict[str, StoredMemory]:
    """Returns rows by content. links: (content, content of the replacement, reason)."""
    told = DecidedMemories().say(*(claim(content, n) for n, (content, _, _) in enumerate(links)))
    rows = {row.content: row for row in told.rows}
    for content, by, reason in links:
        if by is not None:
            end = Interval(memory_id=rows[content].id, valid_to=day(9), replaced_by=rows[by].id, reason=reason)
            told.apply(MemoriesRevised(intervals=(end,)))
    return {row.content: row for row in told.rows}


def forgotten(rows: dict[str, StoredMemory], content: str) -> tuple[str, str]:
    names = {row.id: row.content for row in rows.values()}
    plan = forgetting(rows[content].id, list(rows.values()))
    return "".join(sorted(names[id_] for id_ in plan.ids)), "".join(sorted(names[id_] for id_ in plan.reopened))


def test_duplicates_members_and_edited_versions_are_forgotten_too() -> None:
    rows = chain(("a", "d", "duplicate"), ("b", "d", "merged"), ("c", "b", "edited"), ("d", None, None))
    assert forgotten(rows, "d") == ("abcd", "")


def test_a_superseded_memory_is_not_forgotten() -> None:
    rows = chain(("a", "b", "superseded"), ("b", None, None))
    assert forgotten(rows, "b") == ("b", "")
    assert forgotten(rows, "a") == ("a", "")


def test_an_older_version_is_forgotten_alone() -> None:
    assert forgotten(chain(("a", "b", "edited"), ("b", None, None)), "a") == ("a", "")


def test_the_newest_version_of_a_forgotten_one_is_named_unless_it_is_forgotten_too() -> None:
    rows = chain(("a", "b", "edited"), ("b", "c", "superseded"), ("c", None, None))
    assert newer_version(rows["a"].id, list(rows.values())) == rows["c"].id
    assert newer_version(rows["c"].id, list(rows.values())) is None
    rows["c"] = replace(rows["c"], status="forgotten")
    assert newer_version(rows["a"].id, list(rows.values())) == rows["b"].id
    rows["b"] = replace(rows["b"], replaced_by=rows["a"].id, status="forgotten")
    assert newer_version(rows["a"].id, list(rows.values())) is None, "a chain may be a circle"


def test_forgetting_a_member_forgets_its_merges_and_restores_the_other_members() -> None:
    rows = chain(
        ("a", "m", "merged"), ("b", "m", "merged"), ("m", "n", "merged"), ("c", "n", "merged"), ("n", None, None)
    )
    assert forgotten(rows, "a") == ("amn", "bc")
    assert forgotten(rows, "c") == ("cn", "m")
    assert forgotten(rows, "n") == ("abcmn", "")


def test_members_of_a_merge_that_had_ended_stay_ended() -> None:
    rows = chain(("a", "m", "merged"), ("b", "m", "merged"), ("m", "x", "superseded"), ("x", None, None))
    assert forgotten(rows, "a") == ("am", "")


def test_forgetting_a_duplicate_forgets_the_others_with_its_words() -> None:
    rows = chain(("a", "k", "duplicate"), ("b", "k", "duplicate"), ("k", None, None))
    assert forgotten(rows, "a") == ("abk", "")


def test_forgotten_events_name_their_source_turns_but_not_those_of_members_that_stay() -> None:
    rows = chain(
        ("a", "m", "merged"), ("b", "m", "merged"), ("c", "n", "merged"), ("m", "n", "merged"), ("n", None, None)
    )
    said = {name: rows[name].sources for name in "abc"}
    rows["m"] = replace(rows["m"], sources=(*said["a"], *said["b"]))
    rows["n"] = replace(rows["n"], sources=(*said["a"], *said["b"], *said["c"]))

    def turns(content: str) -> dict[str, str]:
        """Returns for each memory the members whose turns count as its sources."""
        by_turn = {sources[0].event_id: name for name, sources in said.items()}
        names = {row.id: name for name, row in rows.items()}
        plan = forgetting(rows[content].id, list(rows.values()))
        events = forgotten_events(plan, [*rows.values(), *rows.values()])
        return {names[event.memory_id]: "".join(by_turn[turn] for turn in event.source_ids) for event in events}

    assert turns("a") == {"a": "a", "m": "a", "n": "a"}
    assert turns("c") == {"c": "c", "n": "c"}
    assert turns("n") == {"a": "a", "b": "b", "c": "c", "m": "ab", "n": "abc"}


def test_a_cycle_of_replacements_does_not_loop_forever() -> None:
    assert forgotten(chain(("a", "b", "merged"), ("b", "a", "merged")), "a") == ("ab", "")


def test_questions_about_forgotten_memories_are_settled() -> None:
    a, b, c = (row.id for row in chain(("a", None, None), ("b", None, None), ("c", None, None)).values())
    asked = [
        Conflict(id_, memory, against, "?", day(0), None, None) for id_, memory, against in ((a, a, [b]), (b, c, [a]))
    ]
    assert [(answer.answer, answer.intervals) for answer in closing_answers([a], asked)] == [
        ("old", ()),
        ("new", (Interval(memory_id=c),)),
    ]
    assert closing_answers([b], asked[1:]) == []


def alike(first: StoredMemory, second: StoredMemory, similarity: float = 0.95) -> list[tuple[str, str]]:
    """Returns (ended memory, reason) after the second memory was embedded."""
    revised = resolve_near_duplicate(second, [(first, similarity)])
    names = {first.id: first.content, second.id: second.content}
    return (
        []
        if revised is None
        else [(names[interval.memory_id], interval.reason or "") for interval in revised.intervals]
    )


def two(first: str, second: str, **fields: object) -> Sequence[StoredMemory]:
    return DecidedMemories().say(claim(first, 0, **fields), claim(second, 1, **fields)).rows


def test_a_memory_never_ends_for_a_duplicate_that_expires_sooner() -> None:
    told = DecidedMemories().say(
        claim("I really like hiking", 0, expires_at=day(30), dedupe_key="taste:hiking"),
        claim("Hiking is what I really like", 40),
        claim("What I really like is hiking", 41, expires_at=day(90)),
    )
    for_now, always, later = told.rows
    assert alike(for_now, always) == []
    assert alike(always, later) == []
    assert alike(for_now, later) == []


def test_of_two_duplicates_the_strategy_keeps_one() -> None:
    kept: dict[str, list[tuple[str, str]]] = {
        "KEEP_LATEST": [("I really like hiking", "duplicate")],
        "KEEP_OLDEST": [("Hiking is what I really like", "duplicate")],
        "KEEP_BOTH": [],
        "ASK_USER": [],
    }
    for strategy, expected in kept.items():
        first, second = two("I really like hiking", "Hiking is what I really like", strategy=strategy)
        assert alike(first, second) == expected, strategy
        assert alike(second, first) == expected, strategy


def test_a_similar_memory_with_another_claim_stays() -> None:
    first, second = two("I live in Berlin", "I live in Munich")
    assert alike(first, second, 0.99) == []
    first, second = two("I really like hiking", "Hiking is what I really like")
    assert alike(first, second, 0.90) == []
    assert alike(first, replace(second, kind="DECISION")) == []
    assert alike(replace(first, status="closed"), second) == []
    assert alike(replace(first, dedupe_key="a"), replace(second, dedupe_key="b")) == []


def test_of_two_duplicates_the_one_with_a_key_stays() -> None:
    first, second = two("I really like hiking", "Hiking is what I really like")
    assert alike(replace(first, dedupe_key="hobby"), second) == [(second.content, "duplicate")]
    assert alike(first, replace(second, dedupe_key="hobby")) == [(first.content, "duplicate")]
