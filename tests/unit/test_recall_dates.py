"""Tests the times that a question names, relative to the time of asking, and their effect on ranking."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from turnlog.agent.recall import Query, ScopeIndex, rank
from turnlog.agent.recall.questions import read_question
from turnlog.agent.recall.scope import Chunks
from turnlog.projectors.models.terms import terms

NOW = datetime(2026, 11, 22, 23, tzinfo=UTC)


def spans(query: str, now: datetime = NOW, zone: str = "UTC", names: tuple[str, ...] = ()) -> list[list[str]]:
    read = read_question(query, now, ZoneInfo(zone), names)
    return [[f"{first:%Y-%m-%d} {end:%Y-%m-%d}" for first, end in part.spans] for part in read.parts]


@pytest.mark.parametrize(
    ("query", "span"),
    [
        ("Where did I go yesterday?", "2026-11-21 2026-11-22"),
        ("昨天我去了哪里？", "2026-11-21 2026-11-22"),
        ("上周三我说了什么？", "2026-11-11 2026-11-12"),
        ("What did I plant last March?", "2026-03-01 2026-04-01"),
        ("去年三月我在做什么？", "2025-03-01 2025-04-01"),
        ("What did I do last summer?", "2026-06-01 2026-09-01"),
        ("Where did I work last year?", "2025-01-01 2026-01-01"),
        ("Which flats did I have since 2020?", "2020-01-01 2026-11-22"),
    ],
)
def test_a_time_is_read_relative_to_the_time_of_asking(query: str, span: str) -> None:
    assert spans(query) == [[span]]


def test_a_question_without_a_date_has_no_time() -> None:
    assert spans("Which plants do I have?") == [[]]


def test_a_day_is_in_the_users_timezone() -> None:
    assert spans("What did I do today?", zone="Asia/Shanghai") == [["2026-11-23 2026-11-24"]]


def test_each_part_of_a_question_has_its_own_times() -> None:
    assert spans("Where was I last March? What did I do yesterday?") == [
        ["2026-03-01 2026-04-01"],
        ["2026-11-21 2026-11-22"],
    ]


def test_a_month_that_is_the_name_of_a_speaker_is_not_a_time() -> None:
    query = "Who called after April?"
    assert spans(query) == [["2026-05-01 2026-11-22"]]
    assert spans(query, names=tuple(terms("April"))) == [[]]
    assert spans("Who called in April?", names=tuple(terms("April"))) == [["2026-04-01 2026-05-01"]]


def test_without_a_time_of_asking_no_times_are_read() -> None:
    assert read_question("Where did I go yesterday?").parts[0].spans == ()


def diary(*days: int) -> ScopeIndex:
    """Returns a scope with the same sentence on each of these days before NOW, each in a separate thread."""
    said = "We watered the plants"
    return ScopeIndex.of_chunks(
        Chunks.of(
            texts=[said for _ in days],
            terms=[terms(said) for _ in days],
            speakers=["Ann" for _ in days],
            times=[NOW - timedelta(days=day) for day in days],
        ),
        threads=[f"t{day}" for day in days],
    )


def found(query: str, *days: int) -> list[int]:
    (part,) = read_question(query, NOW).parts
    return [days[scored.chunk] for scored in rank(Query(part.text, spans=part.spans), diary(*days))]


def test_turns_of_the_time_come_first_and_those_soon_after_it_next() -> None:
    assert found("Did we water the plants ten days ago?", 200, 11, 10, 8, 1) == [10, 8, 1, 200, 11]
    assert found("Did we water the plants before last week?", 3, 60) == [60, 3]


def test_a_turn_of_the_day_is_found_without_a_word_in_common() -> None:
    assert found("What happened yesterday?", 40, 1, 30) == [1]


EDGES = [datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC) for year in (1, 1970, 2026, 9998, 9999)]
STEPS = (
    "next month · before May · until tomorrow · next winter · 下个月 · 明年 · 三月之前 · in 9000 days · past 9000 years"
    " · 999 years before 999 years ago · the week before 一月一日"
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize("now", EDGES, ids=lambda now: str(now.year))
def test_dates_at_the_edge_of_the_calendar_are_read_or_left_out(now: datetime, zone: str) -> None:
    for query in STEPS.split(" · "):
        read = read_question(query, now, ZoneInfo(zone))
        rank(Query("plants", spans=tuple(span for part in read.parts for span in part.spans)), diary(1, 2))
