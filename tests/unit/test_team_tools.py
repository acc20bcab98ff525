"""The registry of tools makes schemas from functions, checks permissions, and turns every call into a result."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from helpers.support_desk import SUPPORT_TOOLS, refund_order
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import turnlog
from turnlog.agent.team.advising import TOOLS, advising_tools
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.plans import MOST_CHARS, Result
from turnlog.agent.team.teams import Agent, bundled_team, check_tools, load_team
from turnlog.agent.team.tool_registry import Registry, registry_of
from turnlog.agent.team.tools import InvalidTool, Mistake, Use, tool, tool_of

SUPPORT = load_team(Path(__file__).parents[1] / "teams" / "support")
DESK, REFUNDS = SUPPORT.agents["desk"], SUPPORT.agents["refunds"]


class NoRecords:
    """Empty records, for tools that store nothing."""

    async def get(self, kind: str, key: str) -> dict[str, Any] | None:
        return None

    async def all(self, kind: str) -> dict[str, dict[str, Any]]:
        return {}

    async def put(self, kind: str, key: str, value: Mapping[str, Any], effect: UUID) -> None:
        raise AssertionError("this test stores nothing")


USE = Use("ann", datetime(2026, 9, 1, tzinfo=UTC), uuid.uuid4(), NoRecords(), LocalPages("nothing", []))


def error_of(result: Result) -> str:
    assert result.is_error
    return str(result.value["error"])


def alone(function: Callable[..., Any]) -> tuple[Registry, Agent]:
    """Returns a registry with one tool, and an agent that may use it."""
    return registry_of([function]), Agent(type="a", name="A", prompt="p", tools=(function.__name__,))


def test_the_bundled_team_has_all_its_tools_and_no_other() -> None:
    team, registry = bundled_team(), advising_tools()
    check_tools(team, registry.names)
    assert registry.names == {name for agent in team.agents.values() for name in agent.tools}
    assert len(registry.names) == 32


def test_tools_whose_repetition_has_a_second_effect_are_not_retried() -> None:
    registry = advising_tools()
    assert {name for name in registry.names if registry[name].retries == 0} == {"update_profile", "polish_essay"}
    assert {registry[name].timeout_s for name in registry.names} == {30.0}
    assert {name for name in registry.names if registry[name].writes} == {
        "update_profile",
        "polish_essay",
        "create_timeline",
        "create_personal_event",
    }


def test_a_schema_follows_from_the_function() -> None:
    assert advising_tools()["recommend_schools"].schema["function"]["parameters"]["properties"] == {
        "count": {
            "default": 10,
            "description": "how many, 10 if not given",
            "maximum": 30,
            "minimum": 1,
            "type": "integer",
        },
        "tiers": {
            "description": "all three if not given",
            "items": {"enum": ["reach", "match", "safety"], "type": "string"},
            "type": "array",
        },
        "preferences": {
            "additionalProperties": False,
            "description": "The applicant's wishes.",
            "properties": {
                "location": {"description": "region, town or setting, such as West or coastal", "type": "string"},
                "major": {"type": "string"},
                "budget": {"description": "USD a year, after average aid", "minimum": 0, "type": "number"},
            },
            "type": "object",
        },
    }
    chance = advising_tools()["analyze_admission_chance"].schema["function"]["parameters"]
    assert chance["required"] == ["school_id"]
    assert chance["properties"]["round"]["enum"] == ["ED", "EA", "ED2", "RD"]


def test_every_tool_has_a_description_and_a_schema_without_references() -> None:
    for function in TOOLS:
        schema = tool_of(function).schema
        assert len(schema["function"]["description"]) > 30
        assert "$ref" not in str(schema) and "use" not in schema["function"]["parameters"]["properties"]


def test_the_tool_that_delegates_names_the_agents_that_an_agent_may_hand_over_to() -> None:
    registry = advising_tools()
    for agent in bundled_team().agents.values():
        schemas = {schema["function"]["name"]: schema["function"] for schema in registry.schemas(agent)}
        assert set(schemas) == {*agent.tools, "delegate_to_agent"}
        wanted = schemas["delegate_to_agent"]["parameters"]
        assert wanted["properties"]["agent_type"]["enum"] == list(agent.delegates)
        assert wanted["required"] == ["agent_type", "task_description"]


def test_the_docstring_describes_the_parameters() -> None:
    @turnlog.tool
    def book_room(room: str, nights: Annotated[int, Field(ge=1, description="how many")] = 1) -> None:
        """Books a room.

        Args:
            room: the number of the room
        """

    schema = tool_of(book_room).schema["function"]
    assert schema["description"] == "Books a room."
    assert schema["parameters"]["properties"] == {
        "room": {"description": "the number of the room", "type": "string"},
        "nights": {"description": "how many", "default": 1, "minimum": 1, "type": "integer"},
    }


def test_a_writing_function_without_the_id_of_the_call_is_not_repeated() -> None:
    def note(text: str) -> None:
        """Notes."""

    def note_once(use: Use, text: str) -> None:
        """Notes."""

    marked = [tool_of(tool(writes=True)(function)) for function in (note, note_once)]
    assert [(known.retries, known.repeatable) for known in marked] == [(0, False), (2, True)]
    assert tool_of(tool(retries=1, writes=True)(note)).retries == 1


@pytest.mark.parametrize(("value", "beginning"), [("x" * 50_000, "xxx"), (["好"] * 9_000, '["好", "好"')])
async def test_a_long_result_is_cut_and_says_so(value: Any, beginning: str) -> None:
    @tool
    def look() -> Any:
        """Returns a long text."""
        return value

    registry, agent = alone(look)
    result = await registry.call(agent, "look", "{}", USE)
    assert not result.is_error and set(result.value) == {"cut", "beginning"}
    assert result.value["beginning"].startswith(beginning) and len(result.value["beginning"]) == MOST_CHARS
    assert "ask for less" in result.value["cut"]


async def test_a_call_returns_what_the_function_returns() -> None:
    registry = registry_of(SUPPORT_TOOLS)
    result = await registry.call(DESK, "find_order", '{"number": "A100"}', USE)
    assert result == Result({"item": "bell", "usd": 9, "state": "delivered"})
    assert await registry.call(DESK, "search_articles", {"words": "Flat Wheel"}, USE) == Result(
        ["Take the wheel out, then the tube."]
    )


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("fly", "{}", "desk has no tool 'fly'; its tools are find_order, search_articles, delegate_to_agent"),
        ("refund_order", '{"number": "A100", "usd": 5}', "desk has no tool 'refund_order'"),
        ("find_order", "{", "the arguments are not JSON"),
        ("find_order", "[" * 100_000, "the arguments are not JSON"),
        ("find_order", "3", "the arguments do not fit: arguments: input should be"),
        ("find_order", "{}", "the arguments do not fit: number: field required"),
        ("find_order", '{"number": "B1"}', "the arguments do not fit: number: string should match pattern"),
        ("find_order", '{"number": "A100", "fast": true}', "fast: extra inputs are not permitted"),
        ("find_order", '{"number": "A999"}', "there is no order A999"),
    ],
)
async def test_a_wrong_call_is_a_result_that_says_what_is_wrong(name: str, arguments: str, error: str) -> None:
    assert error in error_of(await registry_of(SUPPORT_TOOLS).call(DESK, name, arguments, USE))


async def test_no_agent_may_use_the_tools_of_another() -> None:
    registry, team = advising_tools(), bundled_team()
    refused = 0
    for agent in team.agents.values():
        for name in registry.names - set(agent.all_tools):
            assert f"{agent.type} has no tool {name!r}" in error_of(await registry.call(agent, name, "{}", USE))
            refused += 1
    assert refused == 5 * 32 - 36 - 4  # four specialists may also delegate


async def test_a_failing_tool_is_tried_three_times_and_its_error_text_is_not_shown() -> None:
    tries = 0

    @tool
    async def shaky() -> str:
        """Fails twice, then works."""
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError("secret of the server")
        return "done"

    registry = Registry([tool_of(shaky)], first_wait_s=0.0)
    agent = Agent(type="a", name="A", prompt="p", tools=("shaky",))
    assert await registry.call(agent, "shaky", "{}", USE) == Result("done")
    tries = -10
    assert error_of(await registry.call(agent, "shaky", "{}", USE)) == "shaky failed (OSError)"
    assert tries == -7


async def test_a_tool_that_must_not_happen_twice_is_tried_once() -> None:
    tries = 0

    @tool(retries=0)
    async def once() -> None:
        """Fails."""
        nonlocal tries
        tries += 1
        raise OSError

    registry, agent = alone(once)
    assert error_of(await registry.call(agent, "once", "", USE)) == "once failed (OSError)"
    assert tries == 1


async def test_a_mistake_is_not_retried() -> None:
    tries = 0

    @tool
    def refuse() -> None:
        """Refuses."""
        nonlocal tries
        tries += 1
        raise Mistake("name a day")

    registry, agent = alone(refuse)
    assert error_of(await registry.call(agent, "refuse", "{}", USE)) == "name a day"
    assert tries == 1


async def test_a_tool_that_takes_too_long_is_abandoned() -> None:
    @tool(timeout_s=0.01)
    async def slow() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    registry, agent = alone(slow)
    assert error_of(await registry.call(agent, "slow", "{}", USE)) == "slow did not answer within 0.01 s"


async def test_a_result_that_is_not_json_is_an_error() -> None:
    @tool
    def odd() -> object:
        """Returns a value that JSON cannot represent."""
        return object()

    registry, agent = alone(odd)
    assert "odd failed" in error_of(await registry.call(agent, "odd", "{}", USE))


def test_a_marked_function_stays_callable() -> None:
    assert tool_of(refund_order).writes
    assert SUPPORT_TOOLS[0](number="A100")["item"] == "bell"


class Nested(BaseModel):
    inner: "Nested | None" = None


def endless(x: Nested) -> None:
    """Does something."""


def undescribed(x: int) -> None: ...


def untyped(x) -> None:  # type: ignore[no-untyped-def]
    """Does something."""


def starred(*x: int) -> None:
    """Does something."""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (undescribed, "undescribed has no docstring"),
        (untyped, "untyped: the parameter x has no type"),
        (endless, "endless: the type of a parameter contains itself"),
        (starred, "starred: .* cannot be a parameter of a tool"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Callable[..., None], why: str) -> None:
    with pytest.raises(InvalidTool, match=why):
        tool(function)


def test_two_tools_of_one_name_and_unmarked_functions_are_refused() -> None:
    with pytest.raises(InvalidTool, match="there are two tools 'find_order'"):
        registry_of([SUPPORT_TOOLS[0], SUPPORT_TOOLS[0]])
    with pytest.raises(InvalidTool, match="is not a tool; put @tool above it"):
        registry_of([undescribed])


@given(st.sampled_from(sorted(advising_tools().names)), st.text() | st.recursive(st.none() | st.integers(), st.lists))
def test_any_arguments_make_a_result(name: str, arguments: Any) -> None:
    agent = next(agent for agent in bundled_team().agents.values() if agent.may_use(name))
    text = arguments if isinstance(arguments, str) else repr(arguments)
    result = asyncio.run(advising_tools().call(agent, name, text, USE))
    assert isinstance(result, Result)
