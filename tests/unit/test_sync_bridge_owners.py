"""Tests bridged methods of an owner whose event loop has ended or that is closed."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from queue import Queue

import pytest

from turnlog.consumers.langgraph.opening import in_background
from turnlog.consumers.sync_bridge import LoopClosed, WrongThread, in_own_loop, iterated_in_own_loop, waited_for


class Counter:
    """A minimal class whose methods are bridged."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_closed = False

    @in_own_loop
    async def one(self) -> int:
        assert asyncio.get_running_loop() is self.loop
        return 1

    @in_own_loop
    async def for_ever(self, begun: threading.Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    @iterated_in_own_loop
    async def some(self) -> AsyncIterator[int]:
        for number in (1, 2):
            yield number


async def made() -> Counter:
    return Counter()


async def used(counter: Counter) -> list[int]:
    return [await counter.one(), *[number async for number in counter.some()]]


async def test_an_open_owner_works_from_its_own_loop_and_from_another() -> None:
    counter = Counter()
    assert await used(counter) == [1, 1, 2]
    assert await asyncio.to_thread(asyncio.run, used(counter)) == [1, 1, 2]
    assert await asyncio.to_thread(waited_for, counter, counter.one()) == 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_after_its_loop_has_ended_the_error_says_whether_the_owner_was_closed(is_closed: bool) -> None:
    counter = asyncio.run(made())
    counter.is_closed = is_closed
    told, why = (LoopClosed, "this Counter is closed") if is_closed else (WrongThread, "does not run any more")
    with pytest.raises(told, match=why):
        asyncio.run(used(counter))
    with pytest.raises(told, match=why):
        waited_for(counter, counter.one())


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Counter]:
    counter = Counter()
    yield counter
    counter.is_closed = True


@pytest.mark.parametrize("from_a_loop", [True, False])
def test_a_call_running_when_the_owner_is_closed_ends_with_the_reason(from_a_loop: bool) -> None:
    def call() -> None:
        work = counter.for_ever(begun)
        try:
            asyncio.run(work) if from_a_loop else waited_for(counter, work)
        except LoopClosed as error:
            ended.put(error)

    begun, ended = threading.Event(), Queue[LoopClosed]()
    with in_background(opened()) as counter:
        threading.Thread(target=call, daemon=True).start()
        assert begun.wait(20)
    assert "this Counter is closed" in str(ended.get(timeout=60))
