"""Tests ReWOO with a real chat client: PLAN, EXECUTE and SOLVE, with all variants and failures of each."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from helpers.rewoo_desk import SUPPORT, Desk, only, opened_desk, phases, returned, solved, text

from turnlog.agent.answering.pieces import (
    AgentSwitched,
    PhaseChanged,
    Planned,
    Restarted,
    Round,
    Solved,
    Text,
    ToolReturned,
    ToolUsed,
)
from turnlog.agent.context import counter_for
from turnlog.agent.models.errors import EmptyAnswer
from turnlog.agent.team.plans import CUT
from turnlog.agent.team.tools import tool


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with opened_desk() as desk:
        yield desk


async def test_a_plan_without_calls_is_the_answer(desk: Desk) -> None:
    desk.server.reply("It is on its way.")
    pieces = await desk.ask()
    assert phases(pieces) == ["PLAN"] and text(pieces) == "It is on its way."
    assert [type(piece) for piece in pieces] == [PhaseChanged, Planned, Text, Round, Solved]
    assert solved(pieces).message == "It is on its way." and solved(pieces).tools == ()
    assert [tool["function"]["name"] for tool in desk.bodies[0]["tools"]] == [
        "find_order",
        "search_articles",
        "delegate_to_agent",
    ]


async def test_tools_run_between_the_plan_and_an_answer_without_tools(desk: Desk) -> None:
    calls = [("find_order", {"number": "A101"}), ("search_articles", {"words": "tyre"})]
    desk.server.reply("I look.", tool_calls=calls)
    desk.server.reply("Your blue bicycle is on its way.")
    pieces = await desk.ask()
    assert phases(pieces) == ["PLAN", "EXECUTE", "SOLVE"] and text(pieces) == "Your blue bicycle is on its way."
    assert returned(pieces)["find_order"]["item"] == "blue bicycle"
    planning, solving = desk.bodies
    assert "tools" not in solving and solving["stream"] is True
    said, *results = solving["messages"][len(planning["messages"]) :]
    assert said["content"] == "I look." and [result["role"] for result in results] == ["tool", "tool"]
    assert [call["id"] for call in said["tool_calls"]] == [result["tool_call_id"] for result in results]
    first, last = (piece for piece in pieces if isinstance(piece, Round))
    assert [call.name for call, _ in first.results] == ["find_order", "search_articles"]
    assert first.completion.tool_calls == tuple(call for call, _ in first.results)
    assert last.results == () and last.completion.tool_calls == ()
    assert solved(pieces).tools == ("find_order", "search_articles")
    assert set(solved(pieces).milliseconds) == {"PLAN", "EXECUTE", "SOLVE"}


async def test_a_call_that_was_left_out_is_neither_shown_nor_recorded(desk: Desk) -> None:
    desk.server.reply(tool_calls=[("find_order", {"number": "A101"})] * 2)
    desk.server.reply("Done.")
    pieces = await desk.ask()
    first = next(piece for piece in pieces if isinstance(piece, Round))
    assert len(first.completion.tool_calls) == len(first.results) == 1
    assert len(desk.bodies[1]["messages"][-2]["tool_calls"]) == 1


async def test_two_calls_of_a_tool_with_other_arguments_both_run(desk: Desk) -> None:
    desk.server.reply(tool_calls=[("find_order", {"number": "A101"}), ("find_order", {"number": "A100"})])
    desk.server.reply("Done.")
    pieces = await desk.ask()
    results = [json.loads(piece.result)["item"] for piece in pieces if isinstance(piece, ToolReturned)]
    assert sorted(results) == ["bell", "blue bicycle"] and solved(pieces).tools == ("find_order", "find_order")
    assert [message["role"] for message in desk.bodies[1]["messages"][-3:]] == ["assistant", "tool", "tool"]


async def test_a_loop_sees_results_before_it_calls_more_tools(desk: Desk) -> None:
    """The agent "refunds" has the policy "loop". The ids of calls repeat, as with some servers."""
    desk.server.reply("I look.", tool_calls=[("find_order", {"number": "A101"})])
    desk.server.reply("And the other.", tool_calls=[("find_order", {"number": "#E1.number"}), ("search_articles", {})])
    desk.server.reply("Your bicycle is on its way.")
    pieces = await desk.ask("refunds")
    assert phases(pieces) == ["PLAN", "EXECUTE", "PLAN", "EXECUTE", "PLAN"]
    assert text(pieces) == "I look.And the other.Your bicycle is on its way."
    assert solved(pieces).message == "Your bicycle is on its way."
    used = [piece for piece in pieces if isinstance(piece, ToolUsed)]
    assert len({piece.id for piece in used}) == 3
    assert "has no number" in returned(pieces)["find_order"]["error"], "a later step names an earlier result"
    assert "refunds has no tool" in returned(pieces)["search_articles"]["error"]
    first, second, third = desk.bodies
    assert first["tools"] == second["tools"] == third["tools"]
    assert [message["role"] for message in third["messages"][len(first["messages"]) :]] == [
        *("assistant", "tool"),
        *("assistant", "tool", "tool"),
    ]
    rounds = [piece for piece in pieces if isinstance(piece, Round)]
    assert [len(piece.results) for piece in rounds] == [1, 2, 0]


async def test_a_loop_ends_after_its_rounds_with_an_answer_without_tools(desk: Desk) -> None:
    refunds = SUPPORT.agents["refunds"].model_copy(update={"rounds": 2})
    team = SUPPORT.model_copy(update={"agents": {**SUPPORT.agents, "refunds": refunds}})
    desk.server.reply(tool_calls=[("find_order", {"number": "A101"})])
    desk.server.reply("On its way.")
    pieces = await desk.ask("refunds", team=team)
    assert phases(pieces) == ["PLAN", "EXECUTE", "SOLVE"] and text(pieces) == "On its way."
    assert "tools" in desk.bodies[0] and "tools" not in desk.bodies[1]


async def test_a_loop_streams_its_answer_and_takes_back_words_before_it_hands_over(desk: Desk) -> None:
    wanted = {"agent_type": "desk", "task_description": "find it"}
    desk.server.reply("Let me ask the desk.", tool_calls=[("delegate_to_agent", wanted)])
    desk.server.reply("It is on its way.")
    pieces = await desk.ask("refunds")
    assert solved(pieces).chain == ("refunds", "desk")
    kinds = [type(piece) for piece in pieces]
    assert kinds.index(Restarted) < kinds.index(AgentSwitched)
    desk.server.reply("One two three.")
    assert len([piece for piece in await desk.ask("refunds") if isinstance(piece, Text)]) > 1


async def test_a_failed_tool_is_marked_and_the_answer_is_made_of_the_rest(desk: Desk) -> None:
    desk.server.reply(tool_calls=[("find_order", {"number": "A999"}), ("search_articles", {"words": "flat"})])
    desk.server.reply("There is no such order.")
    pieces = await desk.ask()
    assert returned(pieces)["find_order"] == {"error": "there is no order A999"}
    assert {piece.name: piece.is_error for piece in pieces if isinstance(piece, ToolReturned)} == {
        "find_order": True,
        "search_articles": False,
    }
    assert "there is no order A999" in desk.bodies[1]["messages"][-2]["content"]
    assert text(pieces) == "There is no such order."


async def test_a_step_gets_the_result_that_it_names(desk: Desk) -> None:
    calls = [("find_order", {"number": "A101"}), ("search_articles", {"words": "flat #E1.item"})]
    desk.server.reply(tool_calls=calls)
    desk.server.reply("Done.")
    pieces = await desk.ask()
    used = [json.loads(piece.arguments) for piece in pieces if isinstance(piece, ToolUsed)]
    assert used == [{"number": "A101"}, {"words": "flat blue bicycle"}]
    kinds = [type(piece) for piece in pieces if isinstance(piece, ToolUsed | ToolReturned)]
    assert kinds == [ToolUsed, ToolReturned, ToolUsed, ToolReturned]


async def test_a_step_whose_result_is_missing_fails_alone(desk: Desk) -> None:
    calls = [("find_order", {"number": "A999"}), ("search_articles", {"words": "#E1.item"})]
    desk.server.reply(tool_calls=calls)
    desk.server.reply("Sorry.")
    pieces = await desk.ask()
    assert returned(pieces)["search_articles"] == {"error": "it needs the result of #E1, which failed"}


async def test_an_agent_delegates_to_another(desk: Desk) -> None:
    wanted = {"agent_type": "refunds", "task_description": "refund the bell"}
    desk.server.reply(tool_calls=[("find_order", {"number": "A100"}), ("delegate_to_agent", wanted)])
    desk.server.reply("Refunded.")
    pieces = await desk.ask()
    assert phases(pieces) == ["PLAN", "PLAN"] and solved(pieces).chain == ("desk", "refunds")
    switch = next(piece for piece in pieces if isinstance(piece, AgentSwitched))
    assert (switch.agent, switch.to, switch.task) == ("desk", "refunds", "refund the bell")
    assert not [piece for piece in pieces if isinstance(piece, ToolUsed)]
    assert desk.bodies[1]["messages"][0]["content"] == SUPPORT.agents["refunds"].prompt
    assert desk.bodies[1]["messages"][-1]["content"] == "Task: refund the bell"
    first = next(piece for piece in pieces if isinstance(piece, Round))
    assert [(call.name, result.text) for call, result in first.results] == [
        ("delegate_to_agent", "handed over to refunds")
    ]


async def test_a_question_is_not_delegated_in_circles(desk: Desk) -> None:
    for to in ("refunds", "desk", "refunds"):
        desk.server.reply(tool_calls=[("delegate_to_agent", {"agent_type": to, "task_description": "you do it"})])
    desk.server.reply("Then I answer.")
    pieces = await desk.ask()
    assert solved(pieces).chain == ("desk", "refunds", "desk") and text(pieces) == "Then I answer."
    assert "was handed on 2 times already" in returned(pieces)["delegate_to_agent"]["error"]


async def test_a_delegation_to_an_unknown_agent_is_reported_to_the_model(desk: Desk) -> None:
    desk.server.reply(tool_calls=[("delegate_to_agent", {"agent_type": "boss", "task_description": "x"})])
    desk.server.reply("I answer myself.")
    pieces = await desk.ask()
    assert "cannot hand over to 'boss'" in returned(pieces)["delegate_to_agent"]["error"]
    assert text(pieces) == "I answer myself."


async def test_a_stream_without_text_is_asked_for_once_more_as_a_whole(desk: Desk) -> None:
    desk.server.reply(tool_calls=[("find_order", {"number": "A100"})])
    desk.server.reply("")
    desk.server.reply("A bell.")
    pieces = await desk.ask()
    assert text(pieces) == "A bell." and solved(pieces).message == "A bell."
    assert [body.get("stream", False) for body in desk.bodies] == [True, True, False]
    assert "tools" not in desk.bodies[2]
    planned, last = (piece.completion for piece in pieces if isinstance(piece, Round))
    assert last.tokens_in > 2 * planned.tokens_in, "both calls that solve are counted"


async def test_no_text_at_all_is_an_error(desk: Desk) -> None:
    desk.server.reply(tool_calls=[("find_order", {"number": "A100"})])
    desk.server.reply("")
    desk.server.reply("  ")
    with pytest.raises(EmptyAnswer):
        await desk.ask()


async def test_an_empty_plan_is_answered_by_solving(desk: Desk) -> None:
    desk.server.reply("")
    desk.server.reply("Hello.")
    pieces = await desk.ask()
    assert phases(pieces) == ["PLAN", "SOLVE"] and text(pieces) == "Hello."


async def test_a_plan_may_be_text_of_a_model_that_calls_no_tools(desk: Desk) -> None:
    plan = {"thought": "look", "steps": [{"tool": "find_order", "arguments": {"number": "A100"}}]}
    desk.server.reply(json.dumps(plan))
    desk.server.reply("A bell.")
    pieces = await desk.ask()
    assert phases(pieces) == ["PLAN", "EXECUTE", "SOLVE"] and text(pieces) == "A bell."
    said, told = desk.bodies[1]["messages"][-2:]
    assert said == {"role": "assistant", "content": json.dumps(plan)}
    assert told["role"] == "user" and '#E1 find_order: {"item": "bell"' in told["content"]


async def test_independent_tools_run_at_once(desk: Desk) -> None:
    both = asyncio.Barrier(2)

    @tool
    async def left() -> str:
        """Waits until right runs too."""
        await both.wait()
        return "l"

    @tool
    async def right() -> str:
        """Waits until left runs too."""
        await both.wait()
        return "r"

    desk.server.reply(tool_calls=[("left", {}), ("right", {})])
    desk.server.reply("Done.")
    assert returned(await desk.ask(**only(left, right))) == {"left": "l", "right": "r"}


async def test_tools_that_write_run_one_after_the_other_in_the_order_of_the_plan(desk: Desk) -> None:
    order = list[str]()

    def writer(name: str) -> Callable[..., Any]:
        async def write() -> None:
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

        write.__name__, write.__doc__ = name, "Writes."
        return tool(writes=True)(write)

    desk.server.reply(tool_calls=[("second", {}), ("first", {})])
    desk.server.reply("Done.")
    await desk.ask(**only(writer("first"), writer("second")))
    assert order == ["second begins", "second ends", "first begins", "first ends"]


@pytest.mark.parametrize(("window", "most"), [(4_096, 2_700), (128_000, 16_100)], ids=["a small window", "a large one"])
async def test_results_use_the_room_that_the_context_leaves_in_the_window(desk: Desk, window: int, most: int) -> None:
    @tool
    def long(number: int) -> str:
        """Returns a long text."""
        return f"{number} words and " * 1_200

    desk.server.reply(tool_calls=[("long", {"number": number}) for number in range(4)])
    desk.server.reply("Much.")
    await desk.ask(**only(long), window=window)
    told = [message["content"] for message in desk.bodies[-1]["messages"] if message["role"] == "tool"]
    tokens = sum(counter_for(desk.chat.model).text(text) for text in told)
    assert 0.75 * most < tokens < most and all(CUT in text for text in told)


async def test_a_caller_who_stops_listening_stops_the_tools(desk: Desk) -> None:
    begun, ended = asyncio.Event(), list[str]()

    @tool
    async def endless() -> None:
        """Never ends."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    desk.server.reply(tool_calls=[("endless", {})])

    async def listen() -> None:
        async with aclosing(desk.run(**only(endless))) as pieces:
            async for _ in pieces:
                pass

    listening = asyncio.create_task(listen())
    await begun.wait()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert ended == ["cancelled"]
