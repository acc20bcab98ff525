"""Measures requests to the HTTP server, compared with a FastAPI route that only runs one SELECT."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from statistics import median

from tests.benchmarks.measuring import Row, interleaved, ms, per_second, quantile, ratio
from tests.benchmarks.served import Server, serving
from tests.benchmarks.stand import Stand

CONNECTIONS, RATE, MESSAGES = 8, 50, 400
MODEL_S, OVERHEAD_S = 2.0, 0.05


async def measure(stand: Stand) -> list[Row]:
    async with serving(stand, MODEL_S) as (ours, floor):
        return [
            await _appending(stand, ours, floor),
            *await _reading(stand, ours, floor),
            *[await _asking(ours, many) for many in (20, 200)],
        ]


async def _appending(stand: Stand, ours: Server, floor: Server) -> Row:
    many = stand.sized(2_000, 200)
    appended = count()
    cpu: dict[int, list[float]] = {ours.pid: [], floor.pid: []}

    async def rate(server: Server, call: Callable[[int], Awaitable[object]]) -> float:
        async def append_turns(connection: int) -> None:
            for _ in range(many // CONNECTIONS):
                await call(connection)

        began, used = time.perf_counter(), server.cpu_s()
        await asyncio.gather(*(append_turns(at) for at in range(CONNECTIONS)))
        cpu[server.pid].append((server.cpu_s() - used) / many * 1000)
        return many / (time.perf_counter() - began)

    async def append(connection: int) -> object:
        turn = {"role": "user", "content": f"Turn {next(appended)} of the benchmark."}
        return await ours.call("POST", f"/api/threads/load-{connection}/turns", {"turns": [turn]})

    mine, theirs = await interleaved(
        stand.rounds, partial(rate, ours, append), partial(rate, floor, lambda _: floor.call("GET", "/"))
    )
    factor, spread = ratio(mine, theirs)
    used = [f", {median(cpu[server.pid]):.1f} ms CPU" for server in (ours, floor)]
    our_rate, floor_rate = (per_second(median(rates)) + more for rates, more in zip((mine, theirs), used, strict=True))
    method = f"{CONNECTIONS} connections."
    return Row("POST turns, one turn", our_rate, floor_rate, factor, spread, (">=", 0.5), method)


async def _reading(stand: Stand, ours: Server, floor: Server) -> list[Row]:
    turns = [{"role": ("user", "assistant")[at % 2], "content": f"Turn {at} on boats. " * 15} for at in range(MESSAGES)]
    await ours.call("POST", "/api/threads/long/turns", {"turns": turns})
    query = {"query": "boats", "keyword_only": True}
    calls: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {
        "GET threads": (20, partial(ours.call, "GET", "/api/threads?limit=50")),
        "GET context, 400 messages": (20, partial(ours.call, "GET", "/api/threads/long/context")),
        "POST recall, without vectors": (30, partial(ours.call, "POST", "/api/recall", query)),
    }
    seconds = stand.sized(20, 5)
    base = await _p95_ms(seconds, lambda: floor.call("GET", "/"))
    rows = []
    for name, (bound, call) in calls.items():
        await call()
        used = ours.cpu_s()
        p95 = await _p95_ms(seconds, call)
        shown = f"{ms(p95)}, {(ours.cpu_s() - used) / (RATE * seconds) * 1000:.1f} ms CPU"
        method = f"p95 at {RATE}/s; the floor is the bound. The bare route: {ms(base)}."
        rows.append(Row(name, shown, f"{ms(bound)} (bare route {ms(base)})", p95 / bound, None, ("<=", 1.0), method))
    return rows


async def _p95_ms(seconds: int, call: Callable[[], Awaitable[object]]) -> float:
    """Returns the 95th percentile of the latencies, each measured from the time when the request was due."""
    began = time.perf_counter() + 0.1

    async def request_at(number: int) -> float:
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await call()
        return 1000 * (time.perf_counter() - due)

    return quantile(await asyncio.gather(*(request_at(number) for number in range(RATE * seconds))), 0.95)


async def _asking(ours: Server, many: int) -> Row:
    """Measures concurrent answer streams of `many` users, each of which must end with its answer. Reports the memory of
    the entire process."""

    async def ask(number: int) -> float:
        began, user = time.perf_counter(), f"user-{many}-{number}"
        path = f"/api/threads/asked-{user}/answers/stream"
        events = await ours.call("POST", path, {"message": "Is it so?"}, user)
        assert events.count(b"event: done") == 1, events[-300:]
        return time.perf_counter() - began - MODEL_S

    used, before = ours.cpu_s(), ours.megabytes()
    over = await asyncio.gather(*(ask(number) for number in range(many)))
    p50, p95 = quantile(over, 0.5), quantile(over, 0.95)
    shown = f"{ms(1000 * p95)}, {(ours.cpu_s() - used) / many * 1000:.1f} ms CPU, {ours.megabytes() - before:+.1f} MB"
    method = f"From POST to the end of the stream, without the {MODEL_S:g} s of the model. p50: {ms(1000 * p50)}."
    floor = f"{ms(1000 * OVERHEAD_S)} (p50 {ms(1000 * p50)})"
    return Row(f"{many} questions at once, p95 overhead", shown, floor, p95 / OVERHEAD_S, None, ("<=", 1.0), method)
