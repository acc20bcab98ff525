"""Commands for a team of agents: agents, sample, chat --agent, runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cli import Cli, commands, environment_of
from helpers.openai_server import OpenAIServer


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def turnlog(nats_url: str, database_url: str, tmp_path: Path, model: OpenAIServer) -> Cli:
    variables = {"TURNLOG_TEAM": "advising", "API_BASE_URL": model.url, "API_KEY": model.key, "TURNLOG_MODEL": "m"}
    return commands(environment_of(nats_url, database_url, tmp_path) | variables)


async def test_agents_are_listed_changed_and_switched(turnlog: Cli) -> None:
    listed = {agent["type"]: agent for agent in (await turnlog("agents", "--json")).document}
    assert list(listed) == ["essay", "orchestrator", "profile", "school", "timeline"]
    changed = (await turnlog("agents", "set", "essay", "--temperature", "0.1", "--json")).document
    assert changed["temperature"] == 0.1 and changed["tools"] == listed["essay"]["tools"]
    again = (await turnlog("agents", "set", "essay", "--tools", "get_profile,get_essays", "--json")).document
    assert (again["temperature"], again["tools"]) == (0.1, ["get_profile", "get_essays"])
    refused = await turnlog("agents", "set", "essay", "--tools", "fly", "--json")
    assert refused.error == "invalid-agent"
    assert (await turnlog("agents", "off", "essay", "--json")).document["enabled"] is False
    shown = await turnlog("agents", "show", "essay")
    assert shown.code == 0 and "off" in shown.out and "get_profile, get_essays" in shown.out


async def test_chat_asks_a_chosen_agent_about_the_sample_and_shows_its_steps(turnlog: Cli, model: OpenAIServer) -> None:
    loaded = (await turnlog("sample", "advising", "--user", "ann", "--json")).document
    assert loaded["essays"] > 0 and "fictional" in loaded["note"]
    model.reply("I look.", tool_calls=[("get_profile", {})])
    model.reply("You aim at engineering.")
    asked = await turnlog("chat", "t", "-m", "Who am I?", "--user", "ann", "--agent", "profile")
    assert asked.code == 0 and "You aim at engineering." in asked.out
    assert [line for line in asked.err.splitlines() if line.startswith("You could ask: ")] == [
        "You could ask: What do my assessment results say?",
        "You could ask: Which schools fit my profile?",
    ]
    steps = [line for line in asked.err.splitlines() if line.startswith(("profile: ", "  get_profile"))]
    assert [step.split(" after ")[0] for step in steps] == [
        "profile: PLAN",
        "profile: EXECUTE",
        "  get_profile {}",
        "  get_profile returned",
        "profile: SOLVE",
    ]
    result = json.loads(model.bodies("chat")[-1]["messages"][-1]["content"])
    assert loaded["name"] in json.dumps(result, ensure_ascii=False)
    [run] = (await turnlog("runs", "--user", "ann", "--json")).document
    assert (run["agent"], run["status"]) == ("profile", "solved")


async def test_an_unknown_agent_is_refused_before_the_question_is_asked(turnlog: Cli, model: OpenAIServer) -> None:
    refused = await turnlog("chat", "t", "-m", "Hello", "--user", "ann", "--agent", "pilot")
    assert refused.code == 1 and "there is no agent 'pilot'; there are essay, " in refused.err
    assert (await turnlog("threads", "--json")).document == [] and model.bodies("chat") == []
