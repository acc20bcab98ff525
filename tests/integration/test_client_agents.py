"""Agents of a team are changed from Python: in the process and over HTTP, with one validation."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.client import given as given
from helpers.client import model as model
from helpers.client import served
from helpers.openai_server import OpenAIServer

import turnlog
from turnlog._opening import Opening
from turnlog.agent.access.identity import Forbidden
from turnlog.agent.answering.single_agent import AgentDisabled
from turnlog.agent.team.agents import InvalidAgent
from turnlog.events.errors import NotFound

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("essay", {"temperature": 3}, "temperature"),
    ("essay", {"max_tokens": 0}, "max_tokens"),
    ("essay", {"model": ""}, "model"),
    ("essay", {"tools": "get_profile"}, "tools"),
    ("essay", {"colour": "red"}, "colour: an agent has no such value; it has system_prompt, "),
    ("essay", {"tools": ["fly"]}, "'fly' is not the name of a tool; there are "),
    ("essay", {"delegates": ["essay"]}, "'essay' is not the name of another agent"),
    ("two words", {"temperature": 0}, "agent"),
]


@pytest.fixture(params=["open", "connect"])
async def opening(request: pytest.FixtureRequest, given: dict[str, Any], tmp_path: Path) -> AsyncIterator[Any]:
    given |= {"team": "advising"}
    if request.param == "open":
        yield lambda: turnlog.open(**given)
        return
    async with served(given, tmp_path) as api:
        yield lambda: turnlog.connect(api.url, key=api.token("root", role="admin"))


async def test_agents_are_listed_changed_and_switched(opening: Callable[[], Opening], model: OpenAIServer) -> None:
    async with opening() as memory:
        before = {agent.type: agent for agent in await memory.agents()}
        assert list(before) == ["essay", "orchestrator", "profile", "school", "timeline"]
        await memory.change_agent("essay", system_prompt="You are brief.", delegates=["Profile"], temperature=0)
        changed = await memory.change_agent("Essay", tools=["get_profile"], temperature=None)
        assert list(changed.tools or ()) == ["get_profile"] and list(changed.delegates or ()) == ["profile"]
        assert changed.temperature == before["essay"].temperature, "None takes what the team's file says"
        assert [agent for agent in await memory.agents() if agent.type == "essay"] == [changed]
        model.reply("Brief.")
        assert [part async for part in memory.thread("t", user="root").ask("Hello", agent="essay")] == ["Brief."]
        [body] = model.bodies("chat")
        assert "You are brief." in str(body["messages"])
        assert [tool["function"]["name"] for tool in body["tools"]] == ["get_profile", "delegate_to_agent"]
        assert (await memory.switch_agent("essay", False)).enabled is False
        with pytest.raises(AgentDisabled):
            [part async for part in memory.thread("t", user="root").ask("Hello", agent="essay")]
        assert (await memory.switch_agent("essay", True)).enabled is True
        assert (await memory.change_agent("visas", system_prompt="You know visas.")).name == "visas"


async def test_unusable_agents_are_refused_alike_and_change_nothing(opening: Callable[[], Opening]) -> None:
    async with opening() as memory:
        before = await memory.agents()
        for type_, changes, why in REFUSED:
            with pytest.raises(InvalidAgent, match=why):
                await memory.change_agent(type_, **changes)
        with pytest.raises(InvalidAgent, match="agent"):
            await memory.switch_agent("../essay", False)
        with pytest.raises(NotFound, match="there is no agent 'pilot'"):
            await memory.switch_agent("pilot", False)
        assert await memory.agents() == before


async def test_only_an_operator_of_a_server_changes_its_agents(given: dict[str, Any], tmp_path: Path) -> None:
    async with served(given, tmp_path) as api, turnlog.connect(api.url, key=api.token("ann")) as memory:
        with pytest.raises(Forbidden):
            await memory.agents()
        with pytest.raises(Forbidden):
            await memory.change_agent("orchestrator", temperature=0)
        with pytest.raises(Forbidden):
            await memory.switch_agent("orchestrator", False)
