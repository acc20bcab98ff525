"""Measures answers, recalls and imports while the embedder works on a backlog, and without the embedder."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from statistics import median

from pydantic import SecretStr

from tests.benchmarks.measuring import Row, interleaved, milliseconds, ms, per_second, quantile, ratio, seconds
from tests.benchmarks.stand import Stand, fill
from turnlog.agent.answering.asking import Answered, ask
from turnlog.agent.operations.lag import embedding_backlog
from turnlog.agent.privacy.keys.kek import new_kek
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.agent.recall.recall import recall
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import opened
from turnlog.events.contracts import Event

THREAD, ANSWERS = "asked", 20
PATIENCE_S = 600.0  # long enough for a busy machine
Measure = Callable[[], Awaitable[float]]


async def measure(stand: Stand) -> list[Row]:
    backlog, batch = stand.sized(20_000, 5_000), stand.sized(5_000, 2_000)
    async with stand.empty_log(), stand.fresh_database() as url:
        settings = Settings(_env_file=None, nats_url=stand.nats_url, database_url=url, kek=SecretStr(new_kek()))
        async with opened(settings, "turnlog-bench") as runtime, playing(runtime, ["projectors", "agent"]):
            await fill(runtime.log, stand.conversations.events(backlog))
            await runtime.wait_until_projected(PATIENCE_S)
            questions = itertools.cycle(stand.conversations.texts(200))
            thread = next(stand.conversations.events(1)).thread

            async def answers() -> float:
                return quantile(await milliseconds(lambda: _answer(runtime, next(questions)), ANSWERS), 0.95)

            async def recalls() -> float:
                return quantile(await milliseconds(lambda: _recall(runtime, next(questions), thread), ANSWERS), 0.95)

            async def imported() -> float:
                events = list(stand.conversations.events(batch))
                return batch / await seconds(_import(runtime, events))

            works = (answers, recalls, imported)
            sides = [partial(side, work) for work in works for side in (partial(_beside, runtime), _alone)]
            busy, idle, beside, alone, slowed, free = await interleaved(stand.rounds, *sides)
    return [
        _row("an answer, p95, beside the embedder", busy, idle, ms),
        _row("a recall in a thread, p95, beside the embedder", beside, alone, ms),
        _row("an import, beside the embedder", slowed, free, per_second),
    ]


async def _alone(work: Measure) -> float:
    return await work()


async def _beside(runtime: Runtime, work: Measure) -> float:
    async with _embedding(runtime):
        return await work()


@contextlib.asynccontextmanager
async def _embedding(runtime: Runtime) -> AsyncIterator[None]:
    working = asyncio.create_task(_embed(runtime))
    try:
        yield
    finally:
        is_busy = not working.done() and (await embedding_backlog(runtime)).texts
        working.cancel()  # waiting for the end of a round would take longer than the measurement
        await asyncio.gather(working, return_exceptions=True)
        assert is_busy, "the backlog was too short"


async def _embed(runtime: Runtime) -> None:
    """Embeds in rounds, as the reactors do; waits while projectors catch up."""
    stop = asyncio.Event()
    while True:
        await runtime.give_way(stop)
        await embed_pending(runtime, runtime.models.embedder, pauses=runtime.catching_up)
        await asyncio.sleep(runtime.settings.embed_poll_s)


async def _answer(runtime: Runtime, question: str) -> None:
    pieces = [piece async for piece in ask(runtime, "default", THREAD, question, user="ann")]
    assert isinstance(pieces[-1], Answered)


async def _recall(runtime: Runtime, question: str, thread: str) -> None:
    await recall(runtime, "default", question, thread=thread)


async def _import(runtime: Runtime, events: list[Event]) -> None:
    await fill(runtime.log, events)
    await runtime.wait_until_projected(PATIENCE_S)


def _row(what: str, ours: list[float], floor: list[float], shown: Callable[[float], str]) -> Row:
    factor, spread = ratio(ours, floor)
    return Row(what, shown(median(ours)), shown(median(floor)), factor, spread, None, "Floor: without a backlog.")
