"""The advising team's tools compute chances, recommendations, timelines, reviews of essays and forum matches."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.team.advising.applicant import Profile
from turnlog.agent.team.advising.deadlines import planned
from turnlog.agent.team.advising.essays import review, words
from turnlog.agent.team.advising.forum import matching, popularity
from turnlog.agent.team.advising.sample import (
    Deadline,
    School,
    applicants,
    assessments,
    cases,
    deadlines,
    find_school,
    posts,
    schools,
)
from turnlog.agent.team.advising.schools import chance, recommended, tier
from turnlog.agent.team.tools import Mistake

SCHOOLS = st.sampled_from(list(schools()))
GPAS = st.floats(0, 4)


def test_the_sample_has_its_declared_number_of_rows_with_unique_ids() -> None:
    tables = [schools(), cases(), deadlines(), posts(), assessments(), applicants()]
    assert [len(table) for table in tables] == [60, 80, 200, 120, 20, 5]
    for table in tables:
        assert len({row.id for row in table}) == len(table)


def test_all_references_of_the_sample_are_in_it() -> None:
    known, owners = {row.id for row in schools()}, {row.id for row in applicants()}
    for table in (cases(), deadlines(), posts()):
        assert {row.school_id for row in table} - {None} <= known
    assert {row.owner for row in assessments()} <= owners
    for case in cases():
        assert case.round in find_school(case.school_id).rounds and case.major in find_school(case.school_id).majors
    for deadline in deadlines():
        assert (deadline.round is not None) == (deadline.kind == "application")
    for applicant in applicants():
        Profile.model_validate(applicant.profile)


def test_a_school_is_found_by_id_by_both_names_and_by_a_part_that_only_it_has() -> None:
    first = schools()[0]
    assert (
        find_school(first.id)
        == find_school(first.name.upper())
        == find_school(first.name_zh)
        == find_school(f" {first.name} ")
        == first
    )
    assert find_school("Dunmoor Institute").name == "Dunmoor Institute of Technology"
    for name, why in (("Larkfield", "s01 Larkfield University"), ("Oxford", "search_schools finds"), ("", "search_")):
        with pytest.raises(Mistake, match=why):
            find_school(name)


@given(SCHOOLS, GPAS, GPAS)
def test_a_better_gpa_never_lowers_the_chance(target: School, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert chance(Profile(gpa=low), target).probability <= chance(Profile(gpa=high), target).probability


def test_the_chance_of_a_median_applicant_is_the_acceptance_rate() -> None:
    for target in schools():
        profile = Profile(gpa=target.gpa_median, sat=target.sat_median, toefl=120)
        assert chance(profile, target).probability == pytest.approx(target.acceptance_rate, abs=0.01)


def test_a_score_below_the_minimum_lowers_the_chance_and_a_missing_one_is_named() -> None:
    target = next(known for known in schools() if known.tests == "required")
    enough, short = (Profile(gpa=3.5, toefl=target.toefl_minimum - less) for less in (0, 1))
    assert chance(short, target).probability < chance(enough, target).probability
    assert chance(enough, target).unknown == ("sat",) and chance(Profile(gpa=3.5), target).unknown == ("sat", "toefl")
    with pytest.raises(Mistake, match="the profile has no GPA"):
        chance(Profile(), target)


def test_a_binding_round_raises_the_chance() -> None:
    target, profile = schools()[10], Profile(gpa=3.5)
    by_round = [chance(profile, target, name).probability for name in ("RD", "EA", "ED2", "ED")]
    assert by_round == sorted(set(by_round))


@pytest.mark.parametrize(("probability", "name"), [(0.29, "reach"), (0.3, "match"), (0.7, "match"), (0.71, "safety")])
def test_tiers_begin_at_the_chances_that_the_prompt_states(probability: float, name: str) -> None:
    assert tier(probability) == name


@given(GPAS, st.integers(1, 30))
def test_a_recommendation_has_schools_of_each_available_tier(gpa: float, count: int) -> None:
    profile = Profile(gpa=gpa)
    there = {chance(profile, known).tier for known in schools()}
    chosen = recommended(profile, schools(), count, ["reach", "match", "safety"])
    assert len(chosen) == len({known.id for known, _ in chosen}) == count
    assert len({rated.tier for _, rated in chosen}) >= min(count, len(there))


def test_a_timeline_leads_up_to_the_deadline_and_says_what_is_late() -> None:
    deadline = Deadline("d", "application", "Larkfield ED", date(2026, 11, 1), "s01", "ED", binding=True)
    steps = planned(deadline, date(2026, 10, 1))
    assert [(step["on"], step["late"]) for step in steps] == [
        ("2026-10-01", True),
        ("2026-10-01", True),
        ("2026-10-25", False),
        ("2026-11-01", False),
    ]
    assert steps[-1]["do"] == "deadline (binding)"


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("Don't stop-and-go!", 2), ("我爱 New York", 4), ("3 cats, 12.5 kg", 5)]
)
def test_words_are_counted_in_both_languages(text: str, count: int) -> None:
    assert words(text) == count


def test_a_review_counts_words_sentences_and_stock_phrases() -> None:
    text = "Since the dawn of time people sang. I carried 2 buckets.\n\nIt was raining in the garden"
    essay_review = review(text, {"prompt": "Describe a garden that taught you something", "word_limit": 10})
    assert essay_review["over_limit_by"] == essay_review["words"] - 10 == 7
    assert essay_review["personality"] == {"stock_phrases": ["since the dawn of time"]}
    assert essay_review["detail"] == {"concrete_sentences": 1, "of": 3}
    assert essay_review["structure"] == {"paragraph_words": [11, 6]}
    assert essay_review["language"] == {"longest_sentence_words": 7, "mean_sentence_words": 5.7}
    assert essay_review["relevance"] == {"words_of_the_prompt": ["garden"], "of": 4}


@given(st.text())
def test_any_text_can_be_reviewed(text: str) -> None:
    essay_review = review(text, {})
    assert essay_review["words"] == words(text) and essay_review["over_limit_by"] == 0


def test_a_word_in_the_title_of_a_post_counts_more() -> None:
    post = posts()[0]
    assert matching(post.title, post) > matching(post.text, post) >= 0
    assert matching("zebra", post) == 0
    ranked = sorted(posts(), key=popularity)
    assert popularity(ranked[0]) < popularity(ranked[-1])
