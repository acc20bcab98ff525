"""The bundled team: five agents that advise applicants to universities, with 32 tools over fictional sample data."""

from turnlog.agent.team.advising import applicant, cases, deadlines, essays, forum, schools, web
from turnlog.agent.team.advising.web import sample_pages as sample_pages
from turnlog.agent.team.tool_registry import Registry, registry_of

TOOLS = (
    applicant.get_profile,
    applicant.update_profile,
    schools.search_schools,
    schools.get_school_details,
    schools.compare_schools,
    essays.get_essays,
    essays.review_essay,
    essays.polish_essay,
    essays.generate_outline,
    essays.brainstorm_ideas,
    schools.recommend_schools,
    schools.analyze_admission_chance,
    cases.search_cases,
    deadlines.get_deadlines,
    deadlines.create_timeline,
    deadlines.get_personal_events,
    deadlines.create_personal_event,
    applicant.get_assessment_results,
    applicant.interpret_assessment,
    applicant.suggest_activities_from_assessment,
    forum.search_forum_posts,
    forum.get_popular_discussions,
    forum.answer_forum_question,
    cases.explain_case_result,
    cases.analyze_prediction_accuracy,
    cases.compare_case_with_profile,
    cases.analyze_profile_ranking,
    cases.suggest_profile_improvements,
    cases.compare_with_admitted_profiles,
    web.web_search,
    web.search_school_website,
)


def advising_tools() -> Registry:
    """Returns the 32 tools of the bundled team."""
    return registry_of(TOOLS)
