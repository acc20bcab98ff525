"""Work with a time limit ends in time even if it swallows one cancellation."""

import asyncio
import gc

import pytest

from turnlog.events.tasks import within


async def stubborn(ends: list[str]) -> None:
    never = asyncio.Event()
    try:
        await never.wait()
    except asyncio.CancelledError:
        ends.append("swallowed")
    try:
        await never.wait()
    finally:
        ends.append("ended")


async def test_work_that_swallows_a_cancellation_is_cancelled_again() -> None:
    ends: list[str] = []
    with pytest.raises(TimeoutError):
        await within(0.01, stubborn(ends))
    assert ends == ["swallowed", "ended"]


async def test_a_cancelled_waiter_leaves_no_work_running() -> None:
    ends: list[str] = []
    waiting = asyncio.create_task(within(60, stubborn(ends)))
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ends == ["swallowed", "ended"]


async def test_results_and_errors_are_those_of_the_work() -> None:
    async def seven() -> int:
        return 7

    async def wrong() -> None:
        raise ValueError("wrong")

    assert await within(60, seven()) == 7
    with pytest.raises(ValueError, match="wrong"):
        await within(60, wrong())


async def test_an_error_after_the_waiter_is_cancelled_makes_no_stray_traceback() -> None:
    async def answers_with_an_error() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("gone")

    strays: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(context))
    try:
        waiting = asyncio.create_task(within(60, answers_with_an_error()))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        del waiting
        gc.collect()
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
    assert strays == []
