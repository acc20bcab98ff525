"""A ReWOO run ends in time with a text or a failure, whatever part of it hangs."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from helpers.rewoo_desk import Desk, only, opened_desk, phases, returned, text

from turnlog.agent.answering.pieces import (
    Piece,
)
from turnlog.agent.models.errors import ModelTimedOut
from turnlog.agent.models.protocol import ChatRequest, Delta
from turnlog.agent.team.rewoo import SOLVE_S
from turnlog.agent.team.tool_registry import MAY_BE_DONE
from turnlog.agent.team.tools import tool


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with opened_desk() as desk:
        yield desk


async def test_a_tool_that_takes_too_long_is_abandoned_and_the_answer_is_made(desk: Desk) -> None:
    @tool
    async def slow() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    @tool
    async def quick() -> str:
        """Ends."""
        return "q"

    desk.server.reply(tool_calls=[("slow", {}), ("quick", {})])
    desk.server.reply("Done without it.")
    pieces = await desk.ask(**only(slow, quick), ends_in=SOLVE_S + 3)
    assert returned(pieces) == {"slow": {"error": "there was no time left for it"}, "quick": "q"}
    assert text(pieces) == "Done without it."


async def test_a_writing_tool_that_takes_too_long_is_reported_as_possibly_done(desk: Desk) -> None:
    @tool(writes=True)
    async def pay() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    @tool(writes=True)
    async def later() -> None:
        """Waits for the one before."""

    desk.server.reply(tool_calls=[("pay", {}), ("later", {})])
    desk.server.reply("I do not know.")
    told = returned(await desk.ask(**only(pay, later), ends_in=SOLVE_S + 1))
    assert told["pay"] == {"error": f"there was no time left for its answer, {MAY_BE_DONE}"}
    assert told["later"] == {"error": "there was no time left for it"}


async def test_the_calls_of_a_run_share_one_deadline_for_text(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, stream = list[ChatRequest](), desk.chat.stream

    def noted(request: ChatRequest) -> AsyncIterator[Delta]:
        requests.append(request)
        return stream(request)

    monkeypatch.setattr(desk.chat, "stream", noted)
    desk.server.reply("I look.", tool_calls=[("find_order", {"number": "A101"})])
    desk.server.reply("It is on its way.")
    await desk.ask(within_s=30.0)
    planning, solving = requests
    assert planning.text_by == solving.text_by is not None
    assert planning.ends_at == planning.text_by and solving.ends_at is None  # a plan is not shown before it is complete


async def test_a_model_that_only_thinks_is_abandoned_in_time(desk: Desk) -> None:
    desk.server.reply("Done.", thinking="hm " * 1_000, between=0.05)
    with pytest.raises(ModelTimedOut):
        await desk.ask(within_s=0.5)


async def test_a_plan_that_only_thinks_in_a_loop_is_abandoned_in_time(desk: Desk) -> None:
    desk.server.reply("Done.", thinking="hm " * 1_000, between=0.05)
    with pytest.raises(ModelTimedOut):
        await desk.ask("refunds", within_s=0.5)


async def test_a_model_that_hangs_after_a_slow_tool_is_abandoned_in_time(desk: Desk) -> None:
    @tool
    async def slow() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    desk.server.reply(tool_calls=[("slow", {})])
    desk.server.hang()
    pieces = list[Piece]()
    with pytest.raises(ModelTimedOut):
        async for piece in desk.run(**only(slow), within_s=1.5):
            pieces.append(piece)
    assert phases(pieces) == ["PLAN", "EXECUTE", "SOLVE"]
    assert returned(pieces) == {"slow": {"error": "there was no time left for it"}}
