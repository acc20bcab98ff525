"""Agents are data: the bundled team, a team from a folder, and errors for invalid files."""

import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from turnlog.agent.team.router import route
from turnlog.agent.team.teams import (
    DELEGATE_TOOL,
    HttpService,
    InvalidTeam,
    Team,
    bundled_team,
    check_tools,
    load_team,
)
from turnlog.events.contracts import MAX_DEPTH

SUPPORT = Path(__file__).parents[1] / "teams" / "support"
AGENT = 'name = "A"\nprompt = "Be kind."\n'


def team_of(folder: Path, **agents: str) -> Team:
    (folder / "team.toml").write_text('name = "t"\nentry = "a"\n')
    for type_, text in agents.items():
        (folder / f"{type_}.toml").write_text(text)
    return load_team(folder)


def test_the_bundled_team_has_five_agents_that_use_the_servers_model() -> None:
    agents = bundled_team().agents
    assert {type_: (agent.model, agent.temperature, agent.max_tokens) for type_, agent in agents.items()} == {
        "orchestrator": (None, 0.3, 2000),
        "essay": (None, 0.7, 4000),
        "school": (None, 0.5, 4000),
        "profile": (None, 0.5, 3000),
        "timeline": (None, 0.5, 3000),
    }


def test_the_bundled_team_permits_thirty_two_tools_in_thirty_six_places() -> None:
    agents = bundled_team().agents.values()
    assert {agent.type: len(agent.tools) for agent in agents} == {
        "orchestrator": 11,
        "essay": 6,
        "school": 7,
        "profile": 5,
        "timeline": 7,
    }
    assert len({tool for agent in agents for tool in agent.tools}) == 32


def test_specialists_of_the_bundled_team_hand_back_and_the_entry_agent_hands_on() -> None:
    team = bundled_team()
    assert team.entry == "orchestrator" and team.depth == 3
    assert team.agents["orchestrator"].delegates == ("essay", "school", "profile", "timeline")
    for type_ in ("essay", "school", "profile", "timeline"):
        assert team.agents[type_].delegates == ("orchestrator",)
        assert team.agents[type_].may_use(DELEGATE_TOOL)
        assert not team.agents[type_].may_use("web_search")


def test_every_agent_of_the_bundled_team_has_texts_in_two_languages() -> None:
    for agent in bundled_team().agents.values():
        assert agent.texts.keys() == {"zh", "en"}
        assert all(text.name and text.description for text in agent.texts.values())


def test_prompts_are_exactly_the_specified_ones() -> None:
    prompt = bundled_team().agents["essay"].prompt
    assert prompt.startswith("留学文书专家。中文回复。\n\n能力: 文书评估|润色修改|头脑风暴|大纲规划")
    assert prompt.endswith("原则: 保持学生声音，不代写完整文书")
    prompts = {name: agent.prompt.encode() for name, agent in bundled_team().agents.items()}
    assert {name: hashlib.sha256(text).hexdigest() for name, text in prompts.items()} == {
        "orchestrator": "072dd9467b9231dd05e8d0460ff8ae241f3f35175dc0b974a7b4931fde1fc4bf",
        "essay": "8adc927e99bc67ed0a3da9c8dfa373fdde11d5ade11c70b837a409a95171e4a6",
        "school": "7232e4f6bca637296213f202dfd0e0d07a56b7b56b4f9eca9de0205dae7fc75a",
        "profile": "3f3f9718fc5305c42561b3d1ab5d0fe7ca860f2ebf82da43babdb92843813063",
        "timeline": "71d9809c63bfe48976600fc1c872501f8cc24d0e28710b1644503e70bcdafa05",
    }


def test_another_folder_is_another_team() -> None:
    team = load_team(SUPPORT)
    assert sorted(team.agents) == ["desk", "refunds"]
    assert (team.agents["desk"].policy, team.agents["refunds"].policy) == ("rewoo", "loop")
    assert team.agents["refunds"].model is None
    assert {tool for agent in team.agents.values() for tool in agent.tools} == {
        "find_order",
        "search_articles",
        "refund_order",
    }
    assert route("I want a refund for my bike order", team.rules).agent == "refunds"
    assert route("Hello!", team.rules, team.simple_answers).answer == "Hello! Which order is it about?"


def test_a_team_cannot_be_changed() -> None:
    agent = bundled_team().agents["essay"]
    with pytest.raises(ValidationError, match="frozen"):
        agent.prompt = "other"  # type: ignore[misc]


def test_a_disabled_agent_has_no_routing_rule(tmp_path: Path) -> None:
    rule = '[routing]\nkeywords = ["one", "two", "three", "four"]\n'
    assert [known.agent for known in team_of(tmp_path, a=AGENT + rule).rules] == ["a"]
    assert team_of(tmp_path, a=AGENT + "enabled = false\n" + rule).rules == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (AGENT + "temperatur = 0.5", r"a.toml: temperatur: there is no such key; the keys are delegates, enabled,"),
        (AGENT + "temperature = 3", "a.toml: temperature: should be less than or equal to 2, not 3"),
        (AGENT + 'max_tokens = "many"', "a.toml: max_tokens: should be a valid integer.*, not 'many'"),
        (AGENT + 'policy = "react"', "a.toml: policy: should be 'rewoo' or 'loop', not 'react'"),
        (AGENT + 'type = "b"', "a.toml: type: is not a key; the file's name is the agent's type"),
        (AGENT + 'tools = ["no spaces"]', "a.toml: tools.0: String should match pattern"),
        (AGENT + 'delegates = ["a"]', "a.toml: delegates: 'a' is not the name of another agent; there are b"),
        (AGENT + 'delegates = ["c"]', "a.toml: delegates: 'c' is not the name of another agent; there are b"),
        (AGENT + '[texts.english]\nname = "A"', "a.toml: texts.english"),
        (AGENT + '[routing]\npatterns = ["(", "x"]', r"a.toml: routing.patterns: should be a regular expression"),
        (AGENT + "[routing]\nconfidence = 1.5", "a.toml: routing.confidence: should be less than or equal to 1"),
        ('name = "A"', "a.toml: prompt: is missing"),
        ("name = ", "a.toml: is not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_key(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTeam, match=problem):
        team_of(tmp_path, a=text, b=AGENT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[mcp.a]\ntools = []", "mcp.a: needs either `url` or `command`"),
        ('[mcp.a]\nurl = "http://x"\ncommand = ["x"]\ntools = []', "mcp.a: needs either `url` or `command`"),
        ('[mcp.a]\nurl = "ftp://x"\ntools = []', "mcp.a.url: String should match"),
        ('[mcp.a]\nurl = "http://x"', "mcp.a.tools: is missing"),
        ('[mcp.a]\nurl = "http://x"\ntools = ["a b"]', "mcp.a.tools"),
        ('[mcp.a]\nurl = "http://x"\ntools = ["b"]\nreads = ["c"]', "mcp.a: 'c' is not the name of one of its tools"),
        ('[http.a]\ntools = { b = "getB" }', "http.a.document: is missing"),
        ('[http.a]\ndocument = "d"\nbase_url = "x"\ntools = []', "http.a.base_url: String should match"),
        ('[http.a]\ndocument = "d"\nauth_env = "a-b"\ntools = []', "http.a.auth_env: String should match"),
        ('[http.a]\ndocument = "d"\ntools = []\ntoken = "x"', "http.a.token: there is no such key"),
    ],
)
def test_a_server_of_tools_that_cannot_be_used_is_named(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(AGENT)
    (tmp_path / "team.toml").write_text(f'name = "T"\nentry = "a"\n{text}\n')
    with pytest.raises(InvalidTeam, match=f"team.toml: {problem}"):
        load_team(tmp_path)


def test_a_team_hands_a_question_on_at_most_as_often_as_events_can_record(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(AGENT)
    team = 'name = "T"\nentry = "a"\ndepth = {}\n'
    (tmp_path / "team.toml").write_text(team.format(MAX_DEPTH))
    assert load_team(tmp_path).depth == MAX_DEPTH
    (tmp_path / "team.toml").write_text(team.format(MAX_DEPTH + 1))
    with pytest.raises(InvalidTeam, match=r"team\.toml: depth: should be less than or equal to 3, not 4"):
        load_team(tmp_path)


def test_a_secret_is_sent_in_the_form_that_its_header_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "s3cret")
    service = {"document": "d", "tools": {}, "auth_env": "SHOP_TOKEN"}
    assert HttpService(**service).auth_headers() == {"Authorization": "Bearer s3cret"}
    assert HttpService(**service, auth_header="X-Key").auth_headers() == {"X-Key": "s3cret"}
    monkeypatch.setenv("SHOP_TOKEN", "Basic YTpi")
    assert HttpService(**service).auth_headers() == {"Authorization": "Basic YTpi"}


def test_a_folder_without_team_file_or_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTeam, match="there is no such folder"):
        load_team(tmp_path / "missing")
    with pytest.raises(InvalidTeam, match=r"there is no team\.toml"):
        load_team(tmp_path)
    with pytest.raises(InvalidTeam, match=r"team.toml: entry: 'a' is not the name of an agent; there are b"):
        team_of(tmp_path, b=AGENT)
    (tmp_path / "Big Name.toml").write_text(AGENT)
    with pytest.raises(InvalidTeam, match="an agent's file is named with a-z"):
        team_of(tmp_path, a=AGENT)


def test_a_tool_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    team = team_of(tmp_path, a=AGENT + 'tools = ["fetch"]')
    check_tools(team, {"fetch"})
    with pytest.raises(InvalidTeam, match=r"a.toml: tools: 'fetch' is not the name of a tool; there are search"):
        check_tools(team, {"search"})
    for key in ("after", "without"):
        team = team_of(tmp_path, a=AGENT + f'[[suggestions]]\n{key} = ["fetch"]\ntexts.en = "More?"\n')
        with pytest.raises(InvalidTeam, match=r"a.toml: suggestions: 'fetch' is not the name of a tool"):
            check_tools(team, {"search"})
