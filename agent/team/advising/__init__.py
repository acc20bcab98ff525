"""The bundled team: five agents that advise applicants to universities, with 32 tools over fictional sample data."""

from turnlog.agent.team.advising import cases, dates, essays, forum, profile, schools, web
from turnlog.agent.team.advising.web import sample_pages as sample_pages
from turnlog.agent.team.tools import Registry, registry_of

TOOLS = (
    profile.get_profile,
    profile.update_profile,
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
    dates.get_deadlines,
    dates.create_timeline,
    dates.get_personal_events,
    dates.create_personal_event,
    profile.get_assessment_results,
    profile.interpret_assessment,
    profile.suggest_activities_from_assessment,
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
