"""Tools about admission cases: search, explanation, predictions, and comparison with the applicant."""

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import Field

from turnlog.agent.team.advising.applicant import Profile, profile_of
from turnlog.agent.team.advising.sample import NOTE, Case, cases, find_case, find_school
from turnlog.agent.team.advising.schools import chance
from turnlog.agent.team.tools import Mistake, Use, tool

FEWEST = 5  # with fewer cases, a share says little
SURE = 0.5
CaseId = Annotated[str, Field(description="id of a case, such as c12")]
SchoolId = Annotated[str | None, Field(description="id or name of a school; all schools if not given")]


@tool
def search_cases(
    school_id: SchoolId = None,
    major: str | None = None,
    result: Literal["admitted", "rejected", "waitlisted"] | None = None,
    min_gpa: Annotated[float | None, Field(ge=0, le=4)] = None,
    max_gpa: Annotated[float | None, Field(ge=0, le=4)] = None,
    limit: Annotated[int, Field(ge=1, le=30)] = 10,
) -> dict[str, Any]:
    """Searches cases of earlier applicants by school, major, result and GPA, the newest first."""
    fitting = [
        case
        for case in sorted(_of_school(school_id), key=lambda case: -case.year)
        if (major is None or major.lower() in case.major)
        and (result is None or case.result == result)
        and (min_gpa is None or case.gpa >= min_gpa)
        and (max_gpa is None or case.gpa <= max_gpa)
    ]
    return {"cases": fitting[:limit], "found": len(fitting), "note": NOTE}


@tool
def explain_case_result(case_id: CaseId) -> dict[str, Any]:
    """Compares a case with its school's medians and other cases of the school, to find reasons that may explain its
    result. Nobody knows why a school decided."""
    case = find_case(case_id)
    target = find_school(case.school_id)
    others = [other for other in cases() if other.school_id == case.school_id and other.id != case.id]
    against = {
        "gpa": {"applicant": case.gpa, "school_median": target.gpa_median},
        "sat": {"applicant": case.sat, "school_range": target.sat_range, "tests": target.tests},
        "toefl": {"applicant": case.toefl, "school_minimum": target.toefl_minimum},
        "activities": len(case.activities),
        "awards": len(case.awards),
        "essay": case.essay,
        "school_acceptance_rate": target.acceptance_rate,
    }
    speaks = _speaks(case)
    return {"case": case, "against": against, **speaks, "other_cases_of_the_school": _tally(others), "note": NOTE}


@tool
def analyze_prediction_accuracy(school_id: SchoolId = None) -> dict[str, Any]:
    """Reports how often the members' predictions of case results were right, and how often the estimate of
    analyze_admission_chance was right for the same cases."""
    chosen = _of_school(school_id)
    voted = [case for case in chosen if sum(case.predictions.values())]
    by_crowd = [case for case in voted if (_share(case) >= SURE) == case.admitted]
    by_estimate = [case for case in chosen if (_estimate(case) >= SURE) == case.admitted]
    votes = sum(sum(case.predictions.values()) for case in voted)
    right = sum(case.predictions["admitted" if case.admitted else "not_admitted"] for case in voted)
    surprising = sorted(voted, key=lambda case: -abs(_share(case) - case.admitted))[:3]
    return {
        "cases": len(chosen),
        "majority_right": _rate(len(by_crowd), len(voted)),
        "single_predictions": votes,
        "single_predictions_right": _rate(right, votes),
        "estimate_right": _rate(len(by_estimate), len(chosen)),
        "most_surprising": [
            {"case": case.id, "result": case.result, "predicted": round(_share(case), 2)} for case in surprising
        ],
        "note": NOTE,
    } | _few(len(chosen))


@tool
async def compare_case_with_profile(use: Use, case_id: CaseId) -> dict[str, Any]:
    """Compares the applicant's profile with one case, field by field."""
    case, profile = find_case(case_id), await profile_of(use.records)
    pairs = {
        "gpa": (profile.gpa, case.gpa),
        "sat": (profile.sat, case.sat),
        "toefl": (profile.toefl, case.toefl),
        "activities": (len(profile.activities), len(case.activities)),
        "awards": (len(profile.awards), len(case.awards)),
    }
    compared = {
        name: {"applicant": mine, "case": theirs, "who": _who(mine, theirs)} for name, (mine, theirs) in pairs.items()
    }
    return {"case": case, "compared": compared, "missing": profile.missing, "note": NOTE}


@tool
async def analyze_profile_ranking(use: Use, school_id: SchoolId = None) -> dict[str, Any]:
    """Ranks the applicant's GPA, SAT, activities and awards among the cases, as the share of cases that are lower."""
    profile, chosen = await profile_of(use.records), _of_school(school_id)
    ranks = {name: _below(mine, theirs) for name, mine, theirs in _fields(profile, chosen)}
    return {"share_of_cases_below": ranks, "cases": len(chosen), "missing": profile.missing, "note": NOTE} | _few(
        len(chosen)
    )


@tool
async def suggest_profile_improvements(use: Use, school_id: SchoolId = None) -> dict[str, Any]:
    """Lists the fields in which the applicant is below the median of admitted cases, largest gap first, and what is
    missing in the profile."""
    profile = await profile_of(use.records)
    admitted = [case for case in _of_school(school_id) if case.admitted]
    gaps: list[dict[str, Any]] = [
        {
            "field": name,
            "applicant": mine,
            "median_of_admitted": round(median(theirs), 2),
            "share_below": _below(mine, theirs),
        }
        for name, mine, theirs in _fields(profile, admitted)
        if mine is not None and theirs and mine < median(theirs)
    ]
    gaps.sort(key=lambda gap: gap["share_below"])
    return {"gaps": gaps, "missing": profile.missing, "admitted_cases": len(admitted), "note": NOTE} | _few(
        len(admitted)
    )


@tool
async def compare_with_admitted_profiles(
    use: Use, school_id: SchoolId = None, limit: Annotated[int, Field(ge=1, le=10)] = 3
) -> dict[str, Any]:
    """Compares the applicant with admitted cases: medians, and the cases that are most similar in GPA and SAT."""
    profile = await profile_of(use.records)
    admitted = [case for case in _of_school(school_id) if case.admitted]
    if profile.gpa is None:
        raise Mistake("the profile has no GPA to compare; ask for it")
    alike = sorted(admitted, key=lambda case: _distance(profile, case))[:limit]
    medians = {name: round(median(theirs), 2) for name, _, theirs in _fields(profile, admitted) if theirs}
    mine = {name: value for name, value, _ in _fields(profile, admitted)}
    said = {"applicant": mine, "medians_of_admitted": medians, "most_alike": alike, "admitted_cases": len(admitted)}
    return said | {"note": NOTE} | _few(len(admitted))


def _of_school(school_id: str | None) -> Sequence[Case]:
    """Returns the cases of a school, or all cases. Raises Mistake."""
    if school_id is None:
        return cases()
    target = find_school(school_id)
    return [case for case in cases() if case.school_id == target.id]


def _fields(profile: Profile, chosen: Sequence[Case]) -> list[tuple[str, float | None, list[float]]]:
    """Returns, for each field, its name, the applicant's value and the values of the cases that have one."""
    return [
        ("gpa", profile.gpa, [case.gpa for case in chosen]),
        ("sat", profile.sat, [case.sat for case in chosen if case.sat is not None]),
        ("activities", len(profile.activities), [len(case.activities) for case in chosen]),
        ("awards", len(profile.awards), [len(case.awards) for case in chosen]),
    ]


def _speaks(case: Case) -> dict[str, list[str]]:
    target = find_school(case.school_id)
    for_, against = list[str](), list[str]()
    (for_ if case.gpa >= target.gpa_median else against).append(f"GPA {case.gpa:g}, median {target.gpa_median:g}")
    if case.sat is not None and target.tests != "not considered":
        (for_ if case.sat >= target.sat_median else against).append(f"SAT {case.sat}, middle {target.sat_median}")
    if case.toefl < target.toefl_minimum:
        against.append(f"TOEFL {case.toefl} below {target.toefl_minimum}")
    if case.essay in ("good", "strong"):
        for_.append(f"{case.essay} essay")
    elif case.essay == "weak":
        against.append("weak essay")
    if case.round in ("ED", "ED2"):
        for_.append(f"binding round {case.round}")
    if target.acceptance_rate < 0.2:
        against.append(f"the school admits {target.acceptance_rate:.0%}")
    return {"speaks_for": for_, "speaks_against": against}


def _estimate(case: Case) -> float:
    profile = Profile(gpa=case.gpa, sat=case.sat, toefl=case.toefl)
    return chance(profile, find_school(case.school_id), case.round).probability


def _share(case: Case) -> float:
    """Returns the share of predictions that said admitted."""
    return case.predictions["admitted"] / sum(case.predictions.values())


def _tally(chosen: Sequence[Case]) -> dict[str, int]:
    return {result: sum(case.result == result for case in chosen) for result in ("admitted", "waitlisted", "rejected")}


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 2) if whole else None


def _below(mine: float | None, theirs: Sequence[float]) -> float | None:
    return None if mine is None else _rate(sum(value < mine for value in theirs), len(theirs))


def _who(mine: float | None, theirs: float | None) -> str:
    if mine is None or theirs is None:
        return "unknown"
    return "applicant" if mine > theirs else "case" if mine < theirs else "equal"


def _distance(profile: Profile, case: Case) -> float:
    assert profile.gpa is not None
    tests = abs(profile.sat - case.sat) / 100 if profile.sat is not None and case.sat is not None else 1.0
    return abs(profile.gpa - case.gpa) * 5 + tests


def _few(count: int) -> dict[str, str]:
    return {"caution": f"only {count} cases, which say little"} if count < FEWEST else {}
