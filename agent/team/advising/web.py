"""Tools that search the web, through the provider that the caller has set up."""

from typing import Annotated, Any

from pydantic import Field

from turnlog.agent.team.advising.sample import School, find_school, posts, schools
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.tools import Mistake, Use, tool
from turnlog.agent.team.web_search import Page, WebSearch

Query = Annotated[str, Field(min_length=2, max_length=300, description="in English")]
Limit = Annotated[int, Field(ge=1, le=10)]


@tool(service="search")
async def web_search(use: Use, query: Query, limit: Limit = 5) -> dict[str, Any]:
    """Searches the web for current information, such as visa rules and policies. Cite the links. The result says what
    was searched; sample pages are not the web."""
    return _told(use.web, await use.web.search(query, None, limit))


@tool(service="search")
async def search_school_website(
    use: Use,
    schoolName: Annotated[str, Field(description="the school's English name")],
    query: Query,
    limit: Limit = 3,
) -> dict[str, Any]:
    """Searches a school's website, to verify deadlines and essay questions. Cite the links. The result says what was
    searched."""
    return _told(use.web, await use.web.search(query, _site(use.web, schoolName), limit))


def sample_pages() -> WebSearch:
    """Returns a search over pages made of the sample data: four of each school, and one of each forum topic."""
    pages = [page for school in schools() for page in _of_school(school)]
    topics = sorted({post.topic for post in posts()})
    for topic in topics:
        texts = [
            f"{post.title} {' '.join(reply.text for reply in post.answers)}" for post in posts() if post.topic == topic
        ]
        pages.append((None, Page(f"Forum: {topic}", f"https://forum.example/{topic}", " ".join(texts))))
    return LocalPages("sample pages that come with turnlog, not the web; schools are fictional", pages)


def _site(web: WebSearch, name: str) -> str:
    """Returns the full name of a sample school. For a search on the web, any other name is returned as it is. Raises
    Mistake."""
    try:
        return find_school(name).name
    except Mistake:
        if isinstance(web, LocalPages) or not name.strip():
            raise
        return name.strip()


def _of_school(school: School) -> list[tuple[str | None, Page]]:
    site = f"https://{school.id}.example"
    aid = f"{school.average_aid_usd} USD on average" if school.average_aid_usd else "none for most"
    texts = {
        "admission": f"Rounds: {', '.join(school.rounds)}. We admit {school.acceptance_rate:.0%} of applicants. Half "
        f"of those admitted have an SAT score from {school.sat_range[0]} to {school.sat_range[1]}, and a median GPA of "
        f"{school.gpa_median:g}. Test scores are {school.tests}. TOEFL: at least {school.toefl_minimum}.",
        "costs": f"Tuition is {school.tuition_usd} USD a year. Financial aid and scholarships: {aid}.",
        "essays": " ".join(school.essay_prompts) or "We do not require a supplementary essay besides the main one.",
        "majors": f"Majors: {', '.join(school.majors)}. {school.students} students in {school.town}, {school.region}.",
    }
    return [(school.name, Page(f"{school.name}: {name}", f"{site}/{name}", text)) for name, text in texts.items()]


def _told(web: WebSearch, pages: list[Page]) -> dict[str, Any]:
    answer = {"searched": web.about, "results": pages}
    return answer if pages else answer | {"note": "nothing was found; say so, or search with other words"}
