"""Performs one run: starts the fleet, appends while processes are killed, waits until all is quiet, and judges."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened
from turnlog.events.append import Appender
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.migrations.upgrade import upgrade
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.registry import BY_NAME

from . import schedule, workload
from .fleet import Fleet
from .gate import OnProgress, lag_watched
from .judge import answer_ids, requests, violations
from .ledger import Ledger
from .producers import produce

QUIET_TIMEOUT_S = 240.0
AFTERWARDS = 1_000_000  # added to the seed for events after the outage; large enough that other runs do not use the sum


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run. outage_s: how long both servers are down after the kills; 0 means no outage."""

    seed: int
    events: int = 20_000
    kills: int = 30
    threads: int = 200
    lanes: int = 24
    outage_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """The counts of a run, with times in seconds. violations: empty if the run was good."""

    seed: int
    acknowledged: int
    in_log: int
    retries: int
    repeats: int
    conflicts: int
    answers: int
    killed: dict[str, int]
    append_s: float
    quiet_s: float
    judge_s: float
    violations: list[str]


def ignore(_: str, __: int) -> None:
    """Ignores progress."""


async def run(home: Path, plan: Plan, progress: OnProgress = ignore) -> Result:
    fleet, ledger = Fleet(home, plan.seed), Ledger()
    try:
        await fleet.start()
        await asyncio.to_thread(upgrade, fleet.where.database_url)
        log = await Log.connect(fleet.where.nats_url, StreamOptions(), "turnlog-chaos")
        # short timeouts, because the producers' own retries are tested too
        log.appender = Appender(log.nc, timeout_s=1.0, ack_s=0.5)
        try:
            return await _run(fleet, log, ledger, plan, progress)
        finally:
            await log.close()
    finally:
        await fleet.stop()


async def _run(fleet: Fleet, log: Log, ledger: Ledger, plan: Plan, progress: OnProgress) -> Result:
    started = time.perf_counter()
    fleet.start_workers()
    await _append_while_things_die(fleet, log, ledger, plan, progress)
    if plan.outage_s:
        await _append_after_an_outage(fleet, log, ledger, plan, progress)
    appended = time.perf_counter()
    async with await connect(fleet.where.database_url) as conn:
        problems = await _quiet(fleet, log, ledger, conn, progress)
        quiet = time.perf_counter()
        progress("judging", 0)
        home = Settings(home=fleet.home, nats_url=None, database_url=None)
        async with opened(home) as runtime:  # with the keys to open the events that the workers wrote
            problems += await violations(runtime.log, fleet.where.database_url, conn, ledger)
    return Result(
        plan.seed,
        ledger.count,
        await log.head(),
        ledger.retries,
        ledger.repeats,
        ledger.conflicts,
        len(requests(ledger)),
        dict(sorted(fleet.killed.items())),
        round(appended - started, 1),
        round(quiet - appended, 1),
        round(time.perf_counter() - quiet, 1),
        fleet.deserters + problems,
    )


async def _append_while_things_die(fleet: Fleet, log: Log, ledger: Ledger, plan: Plan, progress: OnProgress) -> None:
    made = workload.make(plan.seed, plan.events, plan.threads, plan.lanes)
    kills = schedule.make(plan.seed, plan.kills, plan.events)
    async with lag_watched(fleet, ledger, plan.events // max(1, plan.kills), progress) as gate:
        killer = asyncio.create_task(_kill(fleet, ledger, kills))
        await produce(log, made, ledger, gate.wait)
        await killer
    await fleet.all_back()


async def _append_after_an_outage(fleet: Fleet, log: Log, ledger: Ledger, plan: Plan, progress: OnProgress) -> None:
    """Appends events after an outage of both servers, which the same workers must survive."""
    progress("both servers down", 0)
    await fleet.outage(plan.outage_s)
    more = workload.make(plan.seed + AFTERWARDS, plan.events // 20, plan.threads, plan.lanes)
    await produce(log, more, ledger, lambda: asyncio.sleep(0))


async def _kill(fleet: Fleet, ledger: Ledger, kills: list[schedule.Kill]) -> None:
    for kill in kills:
        await ledger.reached(kill.after)
        await fleet.kill(kill, asyncio.create_task(ledger.reached(kill.back_after)))


async def _quiet(
    fleet: Fleet, log: Log, ledger: Ledger, conn: psycopg.AsyncConnection[tuple[object, ...]], progress: OnProgress
) -> list[str]:
    """Waits until all requests are answered, all reactions have ended and everything is projected, and stops the
    workers. Returns complaints."""
    problems = await _answered(ledger, conn, progress)
    problems += await fleet.stop_workers("reactors-1", "reactors-2", "agent")
    await wait_for(conn, tuple(BY_NAME), 0, await log.partition_head(0), QUIET_TIMEOUT_S)
    return problems + await fleet.stop_workers("projectors")


async def _answered(
    ledger: Ledger, conn: psycopg.AsyncConnection[tuple[object, ...]], progress: OnProgress
) -> list[str]:
    wanted, ids = len(requests(ledger)), list(answer_ids(ledger))
    deadline, done = time.monotonic() + QUIET_TIMEOUT_S, 0
    while time.monotonic() < deadline:
        rows = await conn.execute(
            "SELECT count(*) FROM messages WHERE event_id = ANY(%s) AND role = 'assistant' AND tool_calls IS NULL",
            (ids,),
        )
        (done,) = (await rows.fetchone()) or (0,)  # type: ignore[assignment]
        progress("answering", int(str(done)))
        if done == wanted:
            return []
        await asyncio.sleep(0.2)
    return [f"{done} of {wanted} requests were answered within {QUIET_TIMEOUT_S:g} s"]
