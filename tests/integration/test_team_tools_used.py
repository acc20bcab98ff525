"""The 32 tools of the advising team return results for a sample applicant and store their effects once."""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from helpers.erased_users import erase
from helpers.json_server import answering
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, pieces_of
from helpers.stage import Stage, player
from helpers.support_desk import SUPPORT_TOOLS

from turnlog.agent.answering.asking import ToolReturned
from turnlog.agent.team.advising import advising_tools
from turnlog.agent.team.advising.sample import applicants, store_applicant
from turnlog.agent.team.advising.web import sample_pages
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.records import StoredRecords
from turnlog.agent.team.teams import bundled_team, check_tools, load_team
from turnlog.agent.team.tool_registry import registry_of
from turnlog.agent.team.tools import Use
from turnlog.projectors.models.registry import find
from turnlog.projectors.rebuild.verify import verify

TOOLS, AGENTS = advising_tools(), bundled_team().agents
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
ANN = "ann@example.org"


async def edited(instruction: str, text: str) -> str:
    """Replaces a model call: returns the first sentence."""
    assert "Keep their voice" in instruction
    return text.split(". ")[0] + "."


@asynccontextmanager
async def advised(nats_url: str, database_url: str) -> AsyncIterator[tuple[Stage, Use]]:
    """Yields a stage with a user who has the first sample applicant's profile, essays and assessments."""
    async with player(nats_url, database_url, ("projectors",))() as stage:
        records = StoredRecords(stage.runtime, "default", ANN, "advising")
        await store_applicant(records, applicants()[0], uuid.uuid4())
        yield stage, Use(ANN, NOW, uuid.uuid4(), records, sample_pages(), edited)


async def used(agent: str, name: str, use: Use, **arguments: Any) -> Any:
    """Calls a tool and returns its value."""
    result = await TOOLS.call(AGENTS[agent], name, arguments, replace(use, effect=uuid.uuid4()))
    assert not result.is_error, result.value
    return result.value


async def refused(agent: str, name: str, use: Use, **arguments: Any) -> str:
    result = await TOOLS.call(AGENTS[agent], name, arguments, use)
    assert result.is_error, result.value
    return str(result.value["error"])


async def test_every_tool_returns_results_based_on_data_and_profile(nats_url: str, database_url: str) -> None:
    async with advised(nats_url, database_url) as (_, use):
        await profile_and_assessments(use)
        await essays(use)
        await schools(use)
        await cases(use)
        await dates(use)
        await forum_and_web(use)


async def profile_and_assessments(use: Use) -> None:
    profile = await used("essay", "get_profile", use)
    assert profile["profile"]["gpa"] == 3.62 and profile["missing"] == []
    changed = await used("profile", "update_profile", use, fields={"toefl": 108, "awards": None})
    assert changed["changed"]["toefl"] == {"before": 101, "after": 108} and changed["missing"] == ["awards"]
    assert (await used("school", "get_profile", use))["profile"]["toefl"] == 108
    assert await refused("profile", "update_profile", use, fields={"gpa": 5}) == (
        "gpa: input should be less than or equal to 4; nothing was changed"
    )
    assert "extra inputs" in await refused("profile", "update_profile", use, fields={"shoe_size": 40})

    results = (await used("profile", "get_assessment_results", use))["results"]
    assert {result["kind"] for result in results} == {"mbti", "holland"}
    days = [result["taken_on"] for result in results]
    assert days == sorted(days, reverse=True)
    for kind, letters in (("mbti", 4), ("holland", 3)):
        newest = next(result for result in results if result["kind"] == kind)
        explained = await used("profile", "interpret_assessment", use, kind=kind)
        assert explained["result"] == newest["result"]
        assert [letter["letter"] for letter in explained["letters"]] == list(newest["result"])
        assert len(explained["letters"]) == letters
    suggested = await used("profile", "suggest_activities_from_assessment", use, count=3)
    assert len(suggested["suggestions"]) == 3
    assert suggested["suggestions"][0]["because"][0] == suggested["code"][0]


async def essays(use: Use) -> None:
    listed = (await used("essay", "get_essays", use))["essays"]
    assert [essay["id"] for essay in listed] == ["e1"]
    measured = (await used("essay", "review_essay", use, essay_id="e1"))["measured"]
    assert set(measured["personality"]["stock_phrases"]) == {
        "in conclusion",
        "the person i am today",
        "i will never forget",
    }
    assert measured["words"] == listed[0]["words"] and measured["over_limit_by"] == 0
    polished = await used("essay", "polish_essay", use, essay_id="e1", style="concise")
    assert polished["saved_as"] == "e1-concise" and polished["words_after"] < polished["words_before"]
    both = (await used("essay", "get_essays", use))["essays"]
    assert [essay["id"] for essay in both] == ["e1", "e1-concise"]
    alone = replace(use, write=None)
    assert "no language model is configured" in await refused("essay", "polish_essay", alone, essay_id="e1")
    assert "saved essays: e1, e1-concise" in await refused("essay", "review_essay", use, essay_id="e9")
    outline = await used("essay", "generate_outline", use, prompt="Why do you want to study here?", word_limit=400)
    assert sum(section["words"] for section in outline["sections"]) == 400
    ideas = (await used("essay", "brainstorm_ideas", use, prompt="Tell us about the bus app", count=3))["ideas"]
    activities = (await used("essay", "get_profile", use))["profile"]["activities"]
    assert len(ideas) == 3 and {idea["from_profile"] for idea in ideas} <= set(activities)


async def schools(use: Use) -> None:
    result = await used("school", "search_schools", use, major="film", location="West", max_tuition_usd=60000)
    assert result["found"] == len(result["schools"]) > 0
    ranks = [school["rank"] for school in result["schools"]]
    assert ranks == sorted(ranks)
    first = result["schools"][0]
    details = (await used("school", "get_school_details", use, school_id=first["name_zh"]))["school"]
    assert details["id"] == first["id"] and "film" in details["majors"]
    assert "there is no school 'Larkfield'; s01 Larkfield University" in await refused(
        "school", "get_school_details", use, school_id="Larkfield"
    )
    compared = await used("school", "compare_schools", use, school_ids=["s01", "s02", "s03"])
    assert compared["best"]["rank"] == min(compared["schools"], key=lambda school: school["rank"])["id"]
    assert "two different" in await refused(
        "school", "compare_schools", use, school_ids=["s01", "Larkfield University"]
    )
    recommended = await used(
        "school", "recommend_schools", use, count=6, preferences={"budget": 90000, "major": "biology"}
    )
    tiers = [school["tier"] for school in recommended["recommendations"]]
    assert len(tiers) == 6 and len(set(tiers)) > 1
    for school in recommended["recommendations"]:
        low, high = {"reach": (0, 0.3), "match": (0.3, 0.7), "safety": (0.7, 1)}[school["tier"]]
        assert low <= school["probability"] <= high
    recommendation = recommended["recommendations"][0]
    chance = await used("school", "analyze_admission_chance", use, school_id=recommendation["id"])
    assert chance["chance"]["probability"] == recommendation["probability"]
    assert "has no round ED2" in await refused("school", "analyze_admission_chance", use, school_id="s01", round="ED2")


async def cases(use: Use) -> None:
    result = await used("timeline", "search_cases", use, result="admitted", min_gpa=3.5, limit=30)
    assert result["cases"] and all(case["result"] == "admitted" and case["gpa"] >= 3.5 for case in result["cases"])
    case = result["cases"][0]
    explained = await used("orchestrator", "explain_case_result", use, case_id=case["id"])
    assert explained["case"] == case and explained["speaks_for"] + explained["speaks_against"]
    accuracy = await used("orchestrator", "analyze_prediction_accuracy", use)
    assert accuracy["cases"] == 80 and 0.5 < accuracy["majority_right"] <= 1
    compared = await used("orchestrator", "compare_case_with_profile", use, case_id=case["id"])
    assert compared["compared"]["gpa"] == {"applicant": 3.62, "case": case["gpa"], "who": _who(3.62, case["gpa"])}
    ranking = (await used("orchestrator", "analyze_profile_ranking", use))["share_of_cases_below"]
    everyone = (await used("timeline", "search_cases", use, limit=30, max_gpa=3.61))["found"]
    assert ranking["gpa"] == round(everyone / 80, 2)
    improved = await used("orchestrator", "suggest_profile_improvements", use)
    assert improved["gaps"][0]["field"] == "awards" and improved["missing"] == ["awards"]
    alike = await used("orchestrator", "compare_with_admitted_profiles", use, limit=2)
    assert [case["result"] for case in alike["most_alike"]] == ["admitted", "admitted"]
    nearest, *_ = sorted(result["cases"], key=lambda known: abs(known["gpa"] - 3.62))
    assert abs(alike["most_alike"][0]["gpa"] - 3.62) < 0.3 and abs(nearest["gpa"] - 3.62) < 0.3
    few = await used("orchestrator", "analyze_profile_ranking", use, school_id=case["school_id"])
    assert few["cases"] >= 5 or "which say little" in few["caution"]


def _who(mine: float, theirs: float) -> str:
    return "applicant" if mine > theirs else "case" if mine < theirs else "equal"


async def dates(use: Use) -> None:
    result = await used("timeline", "get_deadlines", use, kind="application", limit=60, until="2026-11-30")
    assert result["deadlines"] and all(known["round"] in ("ED", "EA") for known in result["deadlines"])
    days = [known["days_left"] for known in result["deadlines"]]
    assert days == sorted(days) and days[0] >= 0
    made = await used("timeline", "create_personal_event", use, title="Write to the physics teacher", on="2026-09-04")
    again = await used("timeline", "create_personal_event", use, title="Write to the physics teacher", on="2026-09-04")
    assert (made["created"], again["created"]) == (True, False) and made["event"] == again["event"]
    assert "is past" in await refused("timeline", "create_personal_event", use, title="x", on="2026-08-31")
    events = (await used("timeline", "get_personal_events", use))["events"]
    assert [event["title"] for event in events] == ["Write to the physics teacher"]
    target = result["deadlines"][0]
    timeline = await used("timeline", "create_timeline", use, school_ids=[target["school_id"]])
    assert [step["on"] for step in timeline["steps"]] == sorted(step["on"] for step in timeline["steps"])
    assert {"begin the essays", "ask for letters of recommendation"} <= {step["do"] for step in timeline["steps"]}
    assert "Write to the physics teacher" in {step["do"] for step in timeline["steps"]}
    stored = await use.records.get("timelines", timeline["id"])
    assert stored is not None and stored["steps"] == timeline["steps"]


async def forum_and_web(use: Use) -> None:
    for query in ("When do you ask for letters?", "推荐信什么时候找老师"):
        result = await used("orchestrator", "search_forum_posts", use, query=query)
        assert result["posts"][0]["topic"] == "planning"
    popular = (await used("orchestrator", "get_popular_discussions", use, limit=3))["discussions"]
    assert len(popular) == 3
    answers = await used("orchestrator", "answer_forum_question", use, post_id=popular[0]["id"])
    likes = [answer["likes"] for answer in answers["answers"]]
    assert likes == sorted(likes, reverse=True) and answers["question"]["id"] == popular[0]["id"]
    web = await used("orchestrator", "web_search", use, query="what was asked at the visa interview")
    assert "not the web" in web["searched"] and web["results"][0]["url"] == "https://forum.example/visa"
    site = await used("timeline", "search_school_website", use, schoolName="Larkfield University", query="tuition aid")
    assert site["results"][0]["url"] == "https://s01.example/costs"
    nothing = await used("school", "search_school_website", use, schoolName="s01", query="zebra")
    assert nothing["results"] == [] and "nothing was found" in nothing["note"]
    assert "hand a question over in a call of its own" in await refused(
        "orchestrator", "delegate_to_agent", use, agent_type="essay", task_description="x"
    )


async def test_a_call_that_is_repeated_has_one_effect(nats_url: str, database_url: str) -> None:
    async with advised(nats_url, database_url) as (stage, use):
        arguments = {"title": "Visit the laboratory", "on": "2026-10-01"}
        first = await TOOLS.call(AGENTS["timeline"], "create_personal_event", arguments, use)
        again = await TOOLS.call(AGENTS["timeline"], "create_personal_event", arguments, use)
        assert first.value["event"] == again.value["event"]
        await use.records.put("events", "k", {"n": 1}, use.effect)
        await use.records.put("events", "k", {"n": 2}, use.effect)
        assert await use.records.get("events", "k") == {"n": 1}
        assert len(await use.records.all("events")) == 2
        assert (await verify(stage.runtime.log, database_url, find("store_items"))).clean


async def test_an_edit_that_is_repeated_returns_what_was_stored_first(nats_url: str, database_url: str) -> None:
    async def other(instruction: str, text: str) -> str:
        return "Other words."

    async with advised(nats_url, database_url) as (_, use):
        arguments = {"essay_id": "e1", "style": "vivid"}
        first = await TOOLS.call(AGENTS["essay"], "polish_essay", arguments, use)
        again = await TOOLS.call(AGENTS["essay"], "polish_essay", arguments, replace(use, write=other))
        assert first.value == again.value and not again.is_error
        anew = await used("essay", "polish_essay", replace(use, write=other), **arguments)
        assert anew["text"] == "Other words."


async def test_a_repeated_change_of_the_profile_returns_its_first_result(nats_url: str, database_url: str) -> None:
    async with advised(nats_url, database_url) as (_, use):
        arguments = {"fields": {"toefl": 108}}
        first = await TOOLS.call(AGENTS["profile"], "update_profile", arguments, use)
        again = await TOOLS.call(AGENTS["profile"], "update_profile", arguments, use)
        assert first.value == again.value
        assert again.value["changed"] == {"toefl": {"before": 101, "after": 108}}
        assert (await used("profile", "update_profile", use, **arguments))["changed"] == {}


async def test_a_repeated_change_of_the_profile_does_not_undo_a_later_one(nats_url: str, database_url: str) -> None:
    async with advised(nats_url, database_url) as (_, use):
        first, other = replace(use, effect=uuid.uuid4()), replace(use, effect=uuid.uuid4())
        profile = AGENTS["profile"]
        made = await TOOLS.call(profile, "update_profile", {"fields": {"toefl": 108, "sat": 1500}}, first)
        await TOOLS.call(profile, "update_profile", {"fields": {"toefl": 112}}, other)
        again = await TOOLS.call(profile, "update_profile", {"fields": {"toefl": 108, "sat": 1500}}, first)
        stored = (await used("profile", "get_profile", use))["profile"]
        assert (stored["toefl"], stored["sat"]) == (112, 1500)
        assert again.value == made.value | {"profile": stored}
        lost = replace(use, effect=uuid.uuid4())  # the process ended before the profile itself was stored
        await use.records.put("profile_change", str(lost.effect), {"before": stored}, lost.effect)
        await TOOLS.call(profile, "update_profile", {"fields": {"gpa": 3.9}}, replace(use, effect=uuid.uuid4()))
        late = await TOOLS.call(profile, "update_profile", {"fields": {"toefl": 115}}, lost)
        assert late.value["changed"] == {"toefl": {"before": 112, "after": 115}}
        stored = (await used("profile", "get_profile", use))["profile"]
        assert (stored["toefl"], stored["gpa"]) == (115, 3.9), "no change is lost"


async def test_the_tools_of_another_team_store_once_too(nats_url: str, database_url: str) -> None:
    team, tools = load_team(Path(__file__).parents[1] / "teams" / "support"), registry_of(SUPPORT_TOOLS)
    check_tools(team, tools.names)
    async with player(nats_url, database_url, ("projectors",))() as stage:
        records = StoredRecords(stage.runtime, "default", "bob", team.name)
        use = Use("bob", NOW, uuid.uuid4(), records, LocalPages("nothing", []))
        for usd in (9, 5):
            done = await tools.call(team.agents["refunds"], "refund_order", {"number": "A100", "usd": usd}, use)
            assert done.value == {"number": "A100", "refunded_usd": usd}
        assert await records.all("refunds") == {"A100": {"usd": 9}}
        wrong = await tools.call(team.agents["desk"], "refund_order", {"number": "A100", "usd": 1}, use)
        assert wrong.is_error


async def test_nobody_reads_the_records_of_another(nats_url: str, database_url: str) -> None:
    async with advised(nats_url, database_url) as (stage, use):
        for user, team in (("bob", "advising"), (ANN, "support"), ("ann@example", "advising")):
            other = StoredRecords(stage.runtime, "default", user, team)
            assert await other.get("profile", "profile") is None and await other.all("essays") == {}
        assert await use.records.get("profile", "profile") is not None


async def test_erasing_a_person_erases_their_records(nats_url: str, database_url: str) -> None:
    async with advised(nats_url, database_url) as (stage, use):
        assert (await use.records.all("essays"))["e1"]["text"].startswith("My grandmother's garden")
        await erase(stage, ANN)
        assert await use.records.all("essays") == {}
        assert await stage.rows("SELECT key FROM store_items WHERE value::text LIKE '%grandmother%'") == []


async def test_a_user_without_a_profile_is_asked_for_one(nats_url: str, database_url: str) -> None:
    async with player(nats_url, database_url, ("projectors",))() as stage:
        records = StoredRecords(stage.runtime, "default", "new", "advising")
        use = Use("new", NOW, uuid.uuid4(), records, sample_pages())
        assert (await used("essay", "get_profile", use))["missing"] == [
            "gpa",
            "sat",
            "toefl",
            "intended_major",
            "activities",
            "awards",
        ]
        for name in ("recommend_schools", "analyze_admission_chance"):
            arguments = {"school_id": "s01"} if name == "analyze_admission_chance" else {}
            assert "the profile has no GPA" in await refused("school", name, use, **arguments)
        assert "no result of the mbti assessment" in await refused("profile", "interpret_assessment", use, kind="mbti")
        assert "no activities" in await refused("essay", "brainstorm_ideas", use, prompt="Tell us")


async def test_a_searxng_that_the_environment_names_is_searched(
    nats_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [{"title": "Visa rules", "url": "https://visas.example", "content": "Bring a passport.", "engine": "e"}]
    with answering({"query": "q", "results": results}) as (url, queries), OpenAIServer() as model:
        monkeypatch.setenv("TURNLOG_SEARXNG_URL", url)
        model.reply("I search.", tool_calls=[("web_search", {"query": "student visa rules"})])
        model.reply("Bring a passport.")
        settings = {"api_base_url": model.url, "api_key": model.key, "model": "m", "team": "advising"}
        async with player(nats_url, database_url, ("projectors", "agent"), **settings)() as stage:
            pieces = await pieces_of(stage.runtime, Place(user="ann"), "Hello, a question")
    [returned] = [piece for piece in pieces if isinstance(piece, ToolReturned)]
    told = json.loads(returned.result)
    assert told["searched"] == "the web" and told["results"][0]["url"] == "https://visas.example", told
    assert queries == [{"q": ["student visa rules"], "format": ["json"]}]
