"""Tools about the applicant: the profile, assessments of personality and interests, and suggestions based on them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnlog.agent.team.tools import Mistake, Records, Use, tool

PROFILE, CHANGE, ASSESSMENTS, ONLY = "profile", "profile_change", "assessments", "profile"
Texts = Annotated[list[Annotated[str, Field(min_length=1, max_length=300)]], Field(max_length=30)]
Kind = Literal["mbti", "holland"]


class Profile(BaseModel):
    """The stored data of an applicant; None means not told yet."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, max_length=100)
    grade: int | None = Field(None, ge=6, le=13)
    graduation_year: int | None = Field(None, ge=2020, le=2040)
    gpa: float | None = Field(None, ge=0, le=4)
    sat: int | None = Field(None, ge=400, le=1600)
    toefl: int | None = Field(None, ge=0, le=120)
    intended_major: str | None = Field(None, max_length=100)
    activities: Texts = Field(default_factory=list)
    awards: Texts = Field(default_factory=list)
    preferred_setting: str | None = Field(None, max_length=100)
    budget_usd: int | None = Field(None, ge=0)

    @property
    def missing(self) -> list[str]:
        """Returns the names of empty fields that advice usually needs."""
        wanted = ("gpa", "sat", "toefl", "intended_major", "activities", "awards")
        return [name for name in wanted if not getattr(self, name)]


async def profile_of(records: Records) -> Profile:
    return Profile.model_validate(await records.get(PROFILE, ONLY) or {})


@tool
async def get_profile(use: Use) -> dict[str, Any]:
    """Returns the applicant's profile: grades, tests, activities, awards, plans, and which important fields are
    still empty."""
    profile = await profile_of(use.records)
    return {"profile": profile.model_dump(exclude_none=True), "missing": profile.missing}


@tool(retries=0, writes=True)
async def update_profile(
    use: Use, fields: Annotated[dict[str, Any], Field(description="new values by field, such as {'toefl': 108}")]
) -> dict[str, Any]:
    """Changes fields of the applicant's profile: name, grade, graduation_year, gpa (0-4), sat, toefl, intended_major,
    activities, awards, preferred_setting, budget_usd. Lists are replaced as a whole. null empties a field."""
    if not fields:
        raise Mistake(f"fields is empty; the fields are {', '.join(Profile.model_fields)}")
    now, effect = await profile_of(use.records), str(use.effect)
    earlier = await use.records.get(CHANGE, effect)  # of an earlier attempt, which may have changed the profile
    before = Profile.model_validate(earlier["before"]) if earlier else now
    emptied = {
        name: [] if name in ("activities", "awards") and value is None else value for name, value in fields.items()
    }
    try:
        after = Profile.model_validate(now.model_dump() | emptied)
    except ValidationError as error:
        problem = error.errors()[0]
        raise Mistake(f"{problem['loc'][0]}: {problem['msg'].lower()}; nothing was changed") from None
    if not earlier:
        await use.records.put(CHANGE, effect, {"before": before.model_dump(exclude_none=True)}, use.effect)
    await use.records.put(PROFILE, ONLY, after.model_dump(exclude_none=True), use.effect)
    # A repeated put stores nothing, and other changes may have followed the first one, so the profile is read again.
    stored = await profile_of(use.records) if earlier else after
    names = [name for name in fields if getattr(after, name) != getattr(before, name)]
    return {
        "changed": {name: {"before": getattr(before, name), "after": getattr(after, name)} for name in names},
        "profile": stored.model_dump(exclude_none=True),
        "missing": stored.missing,
    }


@tool
async def get_assessment_results(use: Use, kind: Kind | None = None) -> dict[str, Any]:
    """Returns the applicant's results of personality (MBTI) and interest (Holland) assessments, the newest first."""
    results = await _results(use.records, kind)
    return {"results": results} | ({} if results else {"note": "the applicant has taken no such assessment"})


@tool
async def interpret_assessment(use: Use, kind: Kind) -> dict[str, Any]:
    """Explains the applicant's newest assessment result letter by letter: how clear each letter is, and which subjects
    fit it. Both tests describe preferences; they do not predict success."""
    newest = await _newest(use.records, kind)
    scores = {letter: int(score) for letter, score in newest["scores"].items()}
    known = MBTI if kind == "mbti" else HOLLAND
    letters = [
        {"letter": letter, "score": scores[letter], "clear": _clear(kind, letter, scores), **known[letter]}
        for letter in newest["result"]
    ]
    return {
        "result": newest["result"],
        "taken_on": newest["taken_on"],
        "letters": letters,
        "subjects": _subjects(letters),
    }


@tool
async def suggest_activities_from_assessment(use: Use, count: Annotated[int, Field(ge=1, le=12)] = 5) -> dict[str, Any]:
    """Suggests activities and contests that fit the applicant's interests (Holland code), strongest interest first,
    without those already in the profile."""
    newest = await _newest(use.records, "holland")
    has = " ".join((await profile_of(use.records)).activities).lower()
    suggestions = [
        {"activity": activity, "because": f"{letter}: {HOLLAND[letter]['means']}"}
        for turn in range(4)
        for letter in newest["result"]
        for activity in HOLLAND[letter]["activities"][turn : turn + 1]
        if activity.split()[0] not in has
    ]
    return {"code": newest["result"], "suggestions": suggestions[:count]}


async def _results(records: Records, kind: str | None) -> list[dict[str, Any]]:
    results = [result for result in (await records.all(ASSESSMENTS)).values() if kind in (None, result["kind"])]
    return sorted(results, key=lambda result: str(result["taken_on"]), reverse=True)


async def _newest(records: Records, kind: str) -> dict[str, Any]:
    """Returns the newest result of an assessment. Raises Mistake."""
    if not (results := await _results(records, kind)):
        raise Mistake(f"the applicant has no result of the {kind} assessment; ask whether they know their type")
    return results[0]


def _clear(kind: str, letter: str, scores: dict[str, int]) -> str:
    """Returns how clear a letter is, compared with its opposite or with the mean of the six interests."""
    other = (
        scores.get(OPPOSITE[letter], 100 - scores[letter]) if kind == "mbti" else sum(scores.values()) // len(scores)
    )
    lead = scores[letter] - other
    return "very clear" if lead >= 40 else "clear" if lead >= 16 else "slight"


def _subjects(letters: list[dict[str, Any]]) -> list[str]:
    """Returns the subjects of the letters in order, with those named twice first."""
    named = [subject for letter in letters for subject in letter.get("subjects", ())]
    return sorted(dict.fromkeys(named), key=lambda subject: -named.count(subject))


OPPOSITE = {"E": "I", "I": "E", "S": "N", "N": "S", "T": "F", "F": "T", "J": "P", "P": "J"}
MBTI: dict[str, dict[str, Any]] = {
    "E": {"means": "gains energy among people", "at study": "seminars, teams, projects with partners"},
    "I": {"means": "gains energy alone", "at study": "research, writing, long work on one question"},
    "S": {"means": "begins with facts and practice", "at study": "laboratories, design, applied subjects"},
    "N": {"means": "begins with patterns and ideas", "at study": "theory, open questions, several subjects at once"},
    "T": {"means": "decides by argument", "at study": "proof, debate, analysis"},
    "F": {"means": "decides by what matters to people", "at study": "teaching, health, work with communities"},
    "J": {"means": "likes things settled", "at study": "clear milestones, long plans kept"},
    "P": {"means": "likes things open", "at study": "exploration, independent study, short sprints"},
}
HOLLAND: dict[str, dict[str, Any]] = {
    "R": {
        "means": "realistic: likes to build, repair and be outdoors",
        "subjects": ["mechanical engineering", "environmental engineering", "marine biology"],
        "activities": ["robotics league", "repair café", "field survey of a stream", "garden on a roof"],
    },
    "I": {
        "means": "investigative: likes to find out and to measure",
        "subjects": ["physics", "biology", "mathematics", "computer science"],
        "activities": ["research in a laboratory", "science fair", "mathematics contest", "physics olympiad"],
    },
    "A": {
        "means": "artistic: likes to make and to express",
        "subjects": ["film", "art", "history"],
        "activities": ["short film festival", "writing prize", "exhibition at school", "theatre production"],
    },
    "S": {
        "means": "social: likes to teach and to help",
        "subjects": ["psychology", "education", "nursing"],
        "activities": ["tutoring of younger pupils", "volunteer work in a clinic", "peer counselling", "language café"],
    },
    "E": {
        "means": "enterprising: likes to lead and to persuade",
        "subjects": ["business", "political science", "economics"],
        "activities": ["debate league", "student company", "model United Nations", "fund raising for a club"],
    },
    "C": {
        "means": "conventional: likes order, records and numbers",
        "subjects": ["economics", "business", "computer science"],
        "activities": ["treasurer of a club", "open data project", "library catalogue", "statistics contest"],
    },
}
