"""The sample data of the bundled team: fictional schools, cases, dates, posts and applicants, which never change."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from turnlog.agent.team.tools import Mistake, Records

NOTE = "sample data: schools, people, posts and dates are fictional"
Round = Literal["ED", "EA", "ED2", "RD"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class School:
    """A school of the sample. acceptance_rate: 0 to 1. sat_range: the middle half of those admitted."""

    id: str
    name: str
    name_zh: str
    kind: Literal["public", "private"]
    region: str
    town: str
    setting: str
    rank: int
    students: int
    acceptance_rate: float
    gpa_median: float
    sat_range: tuple[int, int]
    toefl_minimum: int
    tests: Literal["required", "optional", "not considered"]
    tuition_usd: int
    average_aid_usd: int
    majors: tuple[str, ...]
    rounds: tuple[Round, ...]
    essay_prompts: tuple[str, ...]

    @property
    def sat_median(self) -> int:
        return sum(self.sat_range) // 2


@dataclass(frozen=True, slots=True)
class Case:
    """An applicant's result at a school. predictions: number of members who guessed each result in advance."""

    id: str
    school_id: str
    year: int
    round: Round
    major: str
    gpa: float
    sat: int | None
    toefl: int
    activities: tuple[str, ...]
    awards: tuple[str, ...]
    essay: Literal["weak", "fair", "good", "strong"]
    result: Literal["admitted", "rejected", "waitlisted"]
    predictions: dict[Literal["admitted", "not_admitted"], int]

    @property
    def admitted(self) -> bool:
        return self.result == "admitted"


@dataclass(frozen=True, slots=True)
class Deadline:
    id: str
    kind: Literal["application", "test", "contest", "summer school", "financial aid"]
    name: str
    date: date
    school_id: str | None = None
    round: Round | None = None
    binding: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    author: str
    text: str
    likes: int


@dataclass(frozen=True, slots=True)
class Post:
    id: str
    topic: str
    title: str
    text: str
    language: str
    author: str
    school_id: str | None
    date: date
    likes: int
    views: int
    answers: tuple[Reply, ...]


@dataclass(frozen=True, slots=True)
class Assessment:
    """A result of a test. owner: the sample applicant. scores: 0 to 100 by letter."""

    id: str
    owner: str
    kind: Literal["mbti", "holland"]
    taken_on: date
    result: str
    scores: dict[str, int]


@dataclass(frozen=True, slots=True)
class Applicant:
    """The profile and essays of a sample applicant, which `turnlog sample advising` stores for a user."""

    id: str
    profile: dict[str, Any]
    essays: tuple[dict[str, Any], ...]


def schools() -> Sequence[School]:
    return _rows("schools", School)


def cases() -> Sequence[Case]:
    return _rows("cases", Case)


def deadlines() -> Sequence[Deadline]:
    return _rows("deadlines", Deadline)


def posts() -> Sequence[Post]:
    return _rows("posts", Post)


def assessments() -> Sequence[Assessment]:
    return _rows("assessments", Assessment)


def applicants() -> Sequence[Applicant]:
    return _rows("applicants", Applicant)


def find_school(id_or_name: str) -> School:
    """Returns the school with an id or a name in either language, or with a part of a name that no other school has.
    Raises Mistake, which suggests similar names."""
    wanted = id_or_name.strip().lower()
    for school in schools():
        if wanted in (school.id, school.name.lower(), school.name_zh):
            return school
    near = [school for school in schools() if wanted and (wanted in school.name.lower() or wanted in school.name_zh)]
    if len(near) == 1:
        return near[0]
    names = "; ".join(f"{school.id} {school.name} {school.name_zh}" for school in near[:5])
    raise Mistake(f"there is no school {id_or_name!r}; {names or 'search_schools finds schools and their ids'}")


def find_case(id_: str) -> Case:
    """Returns the case. Raises Mistake."""
    for case in cases():
        if case.id == id_.strip().lower():
            return case
    raise Mistake(f"there is no case {id_!r}; search_cases lists them, from {cases()[0].id} to {cases()[-1].id}")


async def store_applicant(records: Records, applicant: Applicant, effect: UUID) -> None:
    """Stores a sample applicant's profile, essays and assessments as those of a user. effect: repeating a call with the
    same id changes nothing."""

    async def put(kind: str, key: str, value: dict[str, Any]) -> None:
        await records.put(kind, key, value, effect)

    await put("profile", "profile", applicant.profile)
    for essay in applicant.essays:
        await put("essays", essay["id"], essay)
    for assessment in assessments():
        if assessment.owner == applicant.id:
            await put("assessments", assessment.id, to_jsonable_python(assessment))


@cache
def _rows(name: str, kind: type[T]) -> tuple[T, ...]:
    text = (files("turnlog.agent.team.advising") / "sample" / f"{name}.jsonl").read_text("utf-8")
    adapter = TypeAdapter[T](kind)
    return tuple(adapter.validate_json(line) for line in text.splitlines())
