"""Measures answers in one process, compared with the minimum: two appends and one request to the model."""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from statistics import median

import httpx2
from pydantic import SecretStr

from tests.benchmarks.measuring import Row, interleaved, ms, per_second, quantile
from tests.benchmarks.served import free_port, started
from tests.benchmarks.stand import Stand
from turnlog.agent.answering.asking import Answered, Text, ask
from turnlog.agent.answering.turns import NewTurn, add_turns
from turnlog.agent.memory.memory_changes import remember
from turnlog.agent.privacy.keys.kek import new_kek
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import opened
from turnlog.events.contracts import Event, TurnRecorded

USERS, TURNS, LINES, MEMORIES, WINDOW = 32, 100, 4, 20, 4_000
FIRST_TOKEN_MS, RATE = 25.0, 100.0
SETTLED_S = 120.0
ALONE, AT_ONCE = 40, 4


async def measure(stand: Stand) -> list[Row]:
    port = free_port()
    code = f"import asyncio; from tests.benchmarks.served import answer_at_once; asyncio.run(answer_at_once({port}))"
    async with stand.empty_log(), stand.fresh_database() as url, started(code, port=port, token=str):
        model_url = f"http://127.0.0.1:{port}/v1"
        settings = Settings(
            _env_file=None,
            kek=SecretStr(new_kek()),
            context_window=WINDOW,
            nats_url=stand.nats_url,
            database_url=url,
            api_base_url=model_url,
        )
        async with opened(settings, "turnlog-bench") as runtime, playing(runtime, ["projectors", "agent"]):
            texts = stand.conversations.texts(1_000)
            await _fill(runtime, texts)
            questions = (text for text in itertools.cycle(texts) if len(text) > 20)
            async with httpx2.AsyncClient(base_url=model_url, timeout=60) as client:
                return await _measured(stand, runtime, questions, _Least(runtime, client))


async def _fill(runtime: Runtime, texts: list[str]) -> None:
    """Appends memories and a thread for each user, and embeds them. The thread exceeds the window, so that contexts
    begin with relevant episodes."""
    some = itertools.cycle(texts)
    for user in range(USERS):
        turns = [
            NewTurn(("user", "assistant")[at % 2], "\n".join(itertools.islice(some, LINES))) for at in range(TURNS)
        ]
        await add_turns(runtime, "default", f"thread-{user}", turns, user=f"user-{user}")
        for _ in range(MEMORIES):
            await remember(runtime, "default", f"user-{user}", next(some))
    await runtime.wait_until_projected(SETTLED_S)
    await embed_pending(runtime, runtime.models.embedder)
    await runtime.wait_until_projected(SETTLED_S)


class _Least:
    """Makes the minimal answer: two appends and one request to the model."""

    def __init__(self, runtime: Runtime, client: httpx2.AsyncClient) -> None:
        self._runtime, self._client = runtime, client

    async def answer(self, user: int, question: str) -> float:
        """Returns the seconds to the first token."""
        began = time.perf_counter()
        await self._append(user, "user", question)
        asked = {"model": "m", "messages": [{"role": "user", "content": question}], "stream": True}
        async with self._client.stream("POST", "chat/completions", json=asked) as reply:
            async for _ in reply.aiter_lines():
                first = time.perf_counter() - began
                break
        await self._append(user, "assistant", "Yes.")
        return first

    async def _append(self, user: int, role: str, text: str) -> None:
        data, place = TurnRecorded(role=role, content=text), {"tenant": "default", "thread": f"least-{user}"}
        await self._runtime.log.append(Event(source="bench", user=f"user-{user}", data=data, **place))


async def _answer(runtime: Runtime, user: int, question: str) -> float:
    """Returns the seconds to the first token."""
    began, first = time.perf_counter(), None
    async for piece in ask(runtime, "default", f"thread-{user}", question, user=f"user-{user}"):
        if first is None and isinstance(piece, Text):
            first = time.perf_counter() - began
    assert isinstance(piece, Answered) and first is not None
    return first


Ask = Callable[[int, str], Awaitable[float]]


async def _measured(stand: Stand, runtime: Runtime, questions: Iterator[str], least: _Least) -> list[Row]:
    ours: Ask = partial(_answer, runtime)
    sides = (ours, least.answer)
    firsts: dict[Ask, list[float]] = {side: [] for side in sides}
    cpu: dict[Ask, list[float]] = {side: [] for side in sides}

    async def alone(side: Ask) -> float:
        times = [1000 * await side(0, next(questions)) for _ in range(stand.sized(ALONE, ALONE // 2))]
        firsts[side] += times
        return quantile(times, 0.95)

    async def together(side: Ask) -> float:
        began, used = time.perf_counter(), _cpu_s()
        many = stand.sized(AT_ONCE, AT_ONCE // 2)

        async def ask_as(user: int) -> None:
            for _ in range(many):
                await side(user, next(questions))

        await asyncio.gather(*map(ask_as, range(USERS)))
        cpu[side].append((_cpu_s() - used) / (many * USERS) * 1000)
        return many * USERS / (time.perf_counter() - began)

    slow, floor, rate, most = await interleaved(
        stand.rounds, *(partial(how, side) for how in (alone, together) for side in sides)
    )
    return [
        _first_token([firsts[side] for side in sides], median(slow), median(floor)),
        _rate([median(cpu[side]) for side in sides], median(rate), median(most)),
    ]


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system


def _first_token(times: list[list[float]], ours: float, floor: float) -> Row:
    p50, least = (quantile(side_times, 0.5) for side_times in times)
    shown = f"{ms(p50)} / {ms(ours)}"
    return Row(
        "first token, p50 / p95",
        shown,
        f"{ms(FIRST_TOKEN_MS)} (least {ms(least)} / {ms(floor)})",
        ours / FIRST_TOKEN_MS,
        None,
        ("<=", 1.0),
        "One question after the other.",
    )


def _rate(cpu: list[float], ours: float, floor: float) -> Row:
    return Row(
        f"answers, {USERS} at once",
        f"{per_second(ours)}, {cpu[0]:.1f} ms CPU",
        f"{per_second(RATE)} (least {per_second(floor)}, {cpu[1]:.1f} ms CPU)",
        ours / RATE,
        None,
        (">=", 1.0),
        "The process with projectors, agent and who asks.",
    )
