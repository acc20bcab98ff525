"""Stores sample data for a user who tries the bundled team: a profile, essays and assessments, all fictional."""

from dataclasses import dataclass

from uuid_utils.compat import uuid7

from turnlog.agent.runtime import Runtime
from turnlog.agent.team.advising.sample import NOTE, applicants, assessments, store_applicant
from turnlog.agent.team.records import StoredRecords
from turnlog.agent.team.teams import BUNDLED, bundled_team
from turnlog.events.errors import NotFound
from turnlog.events.subjects import check_place

TEAM = BUNDLED  # the team whose tools read the data


@dataclass(frozen=True, slots=True)
class SampleLoaded:
    """The stored data of a sample applicant. name: of the applicant. note: says that all of it is fictional."""

    user: str
    applicant: str
    name: str
    essays: int
    assessments: int
    note: str = NOTE


async def load_applicant(runtime: Runtime, tenant: str, user: str, applicant: str | None = None) -> SampleLoaded:
    """Stores a sample applicant's documents as those of a user; they replace earlier ones with the same keys.

    applicant: its id; None means the first. Raises NotFound, InvalidToken, LogUnavailable.
    """
    check_place(tenant, user=user)
    known = {sample.id: sample for sample in applicants()}
    chosen = known.get(applicant or next(iter(known)))
    if chosen is None:
        raise NotFound(f"there is no sample applicant {applicant!r:.80}; there are {', '.join(known)}")
    await store_applicant(StoredRecords(runtime, tenant, user, bundled_team().name), chosen, uuid7())
    taken = sum(assessment.owner == chosen.id for assessment in assessments())
    return SampleLoaded(user, chosen.id, chosen.profile["name"], len(chosen.essays), taken)
