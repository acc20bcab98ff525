"""Tools about schools: search, details, comparison, recommendation and the chance of admission."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnlog.agent.team.advising.applicant import Profile, profile_of
from turnlog.agent.team.advising.sample import NOTE, Round, School, find_school, schools
from turnlog.agent.team.tools import Mistake, Use, tool

Tier = Literal["reach", "match", "safety"]
REACH_BELOW, SAFETY_ABOVE = 0.3, 0.7
ROUND_BONUS: dict[Round, float] = {"ED": 0.45, "ED2": 0.3, "EA": 0.15, "RD": 0.0}
SHORT = ("id", "name", "name_zh", "rank", "region", "town", "acceptance_rate", "gpa_median", "sat_range", "tuition_usd")
METHOD = (
    "an estimate from the school's acceptance rate, adjusted by the round and by how far GPA and SAT are from those of "
    "admitted applicants; essays, letters and activities are not considered"
)


class Preferences(BaseModel):
    """The applicant's wishes."""

    model_config = ConfigDict(extra="forbid")

    location: str | None = Field(None, description="region, town or setting, such as West or coastal")
    major: str | None = None
    budget: float | None = Field(None, ge=0, description="USD a year, after average aid")


@dataclass(frozen=True, slots=True)
class Chance:
    """An applicant's chance at a school. probability: 0.01 to 0.99. reasons: why it differs from the acceptance rate;
    unknown: missing fields of the profile."""

    probability: float
    tier: Tier
    reasons: tuple[str, ...]
    unknown: tuple[str, ...]


@tool
def search_schools(
    query: Annotated[str | None, Field(description="part of a name, English or Chinese")] = None,
    major: str | None = None,
    location: Annotated[str | None, Field(description="region, town or setting")] = None,
    max_tuition_usd: Annotated[int | None, Field(ge=0)] = None,
    min_acceptance_rate: Annotated[float | None, Field(ge=0, le=1)] = None,
    max_rank: Annotated[int | None, Field(ge=1)] = None,
    limit: Annotated[int, Field(ge=1, le=30)] = 10,
) -> dict[str, Any]:
    """Searches schools by name, subject, place, tuition, acceptance rate and rank; the best rank first."""
    fitting = [
        school
        for school in sorted(schools(), key=lambda school: school.rank)
        if (query is None or query.lower() in school.name.lower() or query in school.name_zh)
        and _teaches(school, major)
        and _lies_in(school, location)
        and (max_tuition_usd is None or school.tuition_usd <= max_tuition_usd)
        and (min_acceptance_rate is None or school.acceptance_rate >= min_acceptance_rate)
        and (max_rank is None or school.rank <= max_rank)
    ]
    return {"schools": [short(school) for school in fitting[:limit]], "found": len(fitting), "note": NOTE}


@tool
def get_school_details(
    school_id: Annotated[str, Field(description="id or name, such as s12")],
) -> dict[str, Any]:
    """Returns all data of a school: size, tuition, aid, tests, majors, rounds and essay prompts."""
    return {"school": find_school(school_id), "note": NOTE}


@tool
def compare_schools(
    school_ids: Annotated[list[str], Field(min_length=2, max_length=6, description="ids or names")],
) -> dict[str, Any]:
    """Compares two to six schools side by side, and names the best one in each respect."""
    chosen = list({school.id: school for school in map(find_school, school_ids)}.values())
    if len(chosen) < 2:
        raise Mistake("name at least two different schools")
    best = {
        "rank": min(chosen, key=lambda school: school.rank).id,
        "acceptance_rate": max(chosen, key=lambda school: school.acceptance_rate).id,
        "price_after_aid": min(chosen, key=price).id,
    }
    rows = [
        short(school) | {"majors": school.majors, "students": school.students, "setting": school.setting}
        for school in chosen
    ]
    common = set(chosen[0].majors).intersection(*(school.majors for school in chosen))
    return {"schools": rows, "best": best, "majors_of_all": sorted(common), "note": NOTE}


@tool
async def recommend_schools(
    use: Use,
    count: Annotated[int, Field(ge=1, le=30, description="how many, 10 if not given")] = 10,
    tiers: Annotated[list[Tier] | None, Field(description="all three if not given")] = None,
    preferences: Preferences | None = None,
) -> dict[str, Any]:
    """Recommends schools for the applicant's profile in three tiers, reach (chance below 30 %), match and safety (above
    70 %), within their preferences. Reports preferences that too few schools meet."""
    profile, wanted = await profile_of(use.records), preferences or Preferences()
    if profile.gpa is None:
        raise Mistake("the profile has no GPA, without which no chance can be estimated; ask for it")
    wanted = Preferences(
        location=wanted.location,
        major=wanted.major or profile.intended_major,
        budget=wanted.budget if wanted.budget is not None else profile.budget_usd,
    )
    fitting = [
        school
        for school in schools()
        if _teaches(school, wanted.major)
        and _lies_in(school, wanted.location)
        and (wanted.budget is None or price(school) <= wanted.budget)
    ]
    chosen = recommended(profile, fitting, count, tiers or ["reach", "match", "safety"])
    listed = [
        short(school) | {"tier": rated.tier, "probability": rated.probability, "reasons": rated.reasons}
        for school, rated in chosen
    ]
    said = {
        "recommendations": listed,
        "preferences": wanted.model_dump(exclude_none=True),
        "method": METHOD,
        "note": NOTE,
    }
    return said if len(listed) == count else said | {"fewer": f"only {len(fitting)} schools fit the preferences"}


@tool
async def analyze_admission_chance(
    use: Use,
    school_id: Annotated[str, Field(description="id or name of the school")],
    round: Annotated[Round, Field(description="round of the application")] = "RD",
) -> dict[str, Any]:
    """Estimates the applicant's chance of admission to a school in a round, with reasons for and against it."""
    school, profile = find_school(school_id), await profile_of(use.records)
    if round not in school.rounds:
        raise Mistake(f"{school.name} has no round {round}; it has {', '.join(school.rounds)}")
    estimate = chance(profile, school, round)
    return {"school": short(school), "round": round, "chance": estimate, "method": METHOD, "note": NOTE}


def chance(profile: Profile, school: School, in_round: Round = "RD") -> Chance:
    """Returns an estimate: log odds of the acceptance rate, plus GPA and SAT against those admitted, plus the round.

    A tenth of a GPA point counts 0.5, 50 SAT points 0.4, each at most 2. The SAT does not count if the school ignores
    tests or the profile has none. A TOEFL score below the minimum counts -1. Raises Mistake without a GPA.
    """
    if profile.gpa is None:
        raise Mistake("the profile has no GPA, without which no chance can be estimated; ask for it")
    odds = math.log(school.acceptance_rate / (1 - school.acceptance_rate))
    by_gpa = _bounded((profile.gpa - school.gpa_median) * 5)
    reasons = [f"GPA {profile.gpa:g} against a median of {school.gpa_median:g}"]
    by_sat, unknown = 0.0, []
    if school.tests != "not considered" and profile.sat is not None:
        by_sat = _bounded((profile.sat - school.sat_median) * 0.008)
        reasons.append(f"SAT {profile.sat} against {school.sat_range[0]}-{school.sat_range[1]}")
    elif school.tests == "required":
        unknown.append("sat")
    if profile.toefl is None:
        unknown.append("toefl")
    elif profile.toefl < school.toefl_minimum:
        odds -= 1.0
        reasons.append(f"TOEFL {profile.toefl} is below the minimum of {school.toefl_minimum}")
    if in_round != "RD":
        reasons.append(f"round {in_round}")
    probability = 1 / (1 + math.exp(-(odds + by_gpa + by_sat + ROUND_BONUS[in_round])))
    bounded = round(min(0.99, max(0.01, probability)), 2)
    return Chance(bounded, tier(bounded), tuple(reasons), tuple(unknown))


def tier(probability: float) -> Tier:
    return "reach" if probability < REACH_BELOW else "safety" if probability > SAFETY_ABOVE else "match"


def recommended(
    profile: Profile, fitting: Sequence[School], count: int, tiers: Sequence[Tier]
) -> list[tuple[School, Chance]]:
    """Returns at most `count` schools by tier and rank. They are taken from the tiers in turn, each tier's best rank
    first, so that a list has schools of every tier."""
    rated = [(school, chance(profile, school)) for school in sorted(fitting, key=lambda school: school.rank)]
    by_tier = [[pair for pair in rated if pair[1].tier == wanted] for wanted in dict.fromkeys(tiers)]
    turns = [pairs[turn] for turn in range(len(rated)) for pairs in by_tier if turn < len(pairs)]
    order = {wanted: at for at, wanted in enumerate(("reach", "match", "safety"))}
    return sorted(turns[:count], key=lambda pair: (order[pair[1].tier], pair[0].rank))


def short(school: School) -> dict[str, Any]:
    """Returns the fields of a school that a list shows."""
    return {name: getattr(school, name) for name in SHORT}


def price(school: School) -> int:
    """Returns the tuition after average aid, USD a year."""
    return school.tuition_usd - school.average_aid_usd


def _bounded(odds: float) -> float:
    return min(2.0, max(-2.0, odds))


def _teaches(school: School, major: str | None) -> bool:
    return major is None or any(major.lower() in taught for taught in school.majors)


def _lies_in(school: School, location: str | None) -> bool:
    return location is None or location.lower() in (school.region.lower(), school.town.lower(), school.setting)
