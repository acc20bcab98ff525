"""Tracks the processes that play roles and their loops: finds dead processes, stopped loops and missing roles.

Each process renews its row in the table `processes` and deletes it when it is stopped normally, so that all other
processes, on any machine, see when one was killed.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import psutil
import psycopg
from psycopg.types.json import Jsonb

from turnlog.agent import metrics
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError
from turnlog.events.heartbeats import Heartbeat
from turnlog.events.tasks import pause
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection

BEAT_S, DEAD_AFTER_S, FORGOTTEN_AFTER_S = 2.0, 15.0, 60.0
LAG_EVERY_S, BLOCKED_S = 0.05, 0.05
EVENT_LOOP = "event-loop"
CLIENT = "turnlog-client"  # a program that embeds turnlog: its roles are not reported as missing when it ends
AWAY = (psycopg.Error, TurnlogError, OSError, TimeoutError)

_BEAT = """
INSERT INTO processes AS p (id, name, host, pid, started_at, roles, loops, beat_at)
VALUES (%(id)s, %(name)s, %(host)s, %(pid)s, %(started_at)s, %(roles)s, %(loops)s, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET loops = excluded.loops, beat_at = excluded.beat_at"""
_LEAVE = "DELETE FROM processes WHERE id = %s"
_LIST = """
SELECT id::text, name, host, pid, started_at, roles, loops, extract(epoch FROM clock_timestamp() - beat_at)::float
FROM processes ORDER BY name, beat_at"""


@dataclass(frozen=True, slots=True)
class LoopState:
    """A loop of a process. seconds: time since the last round that the process has reported. fault: why it counts as
    dead as of the process's last beat, or None. slowest_s: the longest time between two recent rounds."""

    role: str
    loop: str
    seconds: float
    fault: str | None
    slowest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its loops. seconds: time since its last beat. is_gone: it ran on this machine and has ended."""

    id: str
    name: str
    host: str
    pid: int
    roles: Sequence[str]
    seconds: float
    is_gone: bool
    loops: Sequence[LoopState]

    @property
    def is_alive(self) -> bool:
        return not self.is_gone and self.seconds < DEAD_AFTER_S

    def __str__(self) -> str:
        return f"{self.name.replace('-', ' ')} (pid {self.pid}{'' if self.host == _host() else f' on {self.host}'})"


async def processes(runtime: Runtime) -> list[Process]:
    """Returns the living processes, and dead processes with a role that no living process plays. The state of this
    process is the current one.

    Raises psycopg errors.
    """
    async with runtime.pool.connection() as conn:
        all_processes = await _all(runtime, conn)
    return [process for process in all_processes if process.is_alive or _is_missed(process, all_processes)]


def deaths(all_processes: Sequence[Process]) -> list[str]:
    """Returns a sentence about each dead process, with those of its roles that no living process plays."""
    played = {role for process in all_processes if process.is_alive for role in process.roles}
    said = list[str]()
    for process in all_processes:
        if not process.is_alive:
            left = ", ".join(role for role in process.roles if role not in played)
            what = f"nobody plays {left}" if played else "no role runs"
            said.append(
                f"{process} {'died' if process.is_gone else f'was last heard of {process.seconds:.0f} s ago'}, {what}"
            )
    return said


def blocked_s(process: Process) -> float:
    """Returns the longest block of the process's event loop within the last minute or two, in seconds."""
    return max((loop.slowest_s - LAG_EVERY_S for loop in process.loops if loop.loop == EVENT_LOOP), default=0.0)


def faults(all_processes: Sequence[Process]) -> list[tuple[str, str]]:
    """Returns (loop, sentence) for each broken loop of a living process."""
    return [
        (loop.loop, f"{loop.loop} of {process}: {loop.fault}")
        for process in all_processes
        if process.is_alive
        for loop in process.loops
        if loop.fault is not None
    ]


@contextlib.asynccontextmanager
async def registered(runtime: Runtime, roles: Sequence[str]) -> AsyncIterator[None]:
    """Registers this process in the table while the block runs. If the process is killed, its row stays, so that the
    others notice."""
    me = psutil.Process()
    row = {
        "id": runtime.process_id,
        "name": runtime.name,
        "host": _host(),
        "pid": me.pid,
        "started_at": me.create_time(),
        "roles": list(roles),
    }
    beating, stop = partial(_beating, runtime, row), asyncio.Event()
    try:
        running, watch = partial(runtime.heartbeats.running, "process"), _watch_loop
        async with running("heartbeat", beating, stop), running(EVENT_LOOP, watch, stop):
            yield
    finally:
        with contextlib.suppress(*AWAY):  # if Postgres is unavailable, others see that the process does not beat
            async with asyncio.timeout(BEAT_S), runtime.pool.connection() as conn:
                await conn.execute(_LEAVE, (runtime.process_id,))


async def _beating(runtime: Runtime, row: dict[str, object], beat: Heartbeat) -> None:
    changed, forget_at, loop = runtime.heartbeats.changed, 0.0, asyncio.get_running_loop()
    while True:
        changed.clear()
        problem = None
        try:
            async with asyncio.timeout(DEAD_AFTER_S), runtime.pool.connection() as conn:
                await conn.execute(_BEAT, {**row, "loops": Jsonb([asdict(state) for state in _loops(runtime)])})
                if loop.time() >= forget_at:
                    all_processes = await _all(runtime, conn)
                    dead = [process for process in all_processes if not process.is_alive]
                    await _forget(conn, [process for process in dead if not _is_missed(process, all_processes)])
                    forget_at = loop.time() + FORGOTTEN_AFTER_S
        except AWAY as error:
            problem = f"cannot write to Postgres: {type(error).__name__}"
        beat.beat(problem)
        await pause(changed, BEAT_S)
        await asyncio.sleep(BEAT_S / 20)  # several changes at once become one write


async def _watch_loop(beat: Heartbeat) -> None:
    """Measures how long callbacks block the event loop. In asyncio's debug mode (PYTHONASYNCIODEBUG=1), callbacks that
    block it for more than BLOCKED_S are logged by name.
    """
    asyncio.get_running_loop().slow_callback_duration = BLOCKED_S
    while True:
        before = time.monotonic()
        await asyncio.sleep(LAG_EVERY_S)
        metrics.LOOP_LAG.observe(max(0.0, time.monotonic() - before - LAG_EVERY_S))
        beat.beat()


async def forget_killed(database_url: str) -> None:
    """Deletes the rows of processes that have ended on this machine; called by the code that killed them.

    Raises DatabaseUnavailable, psycopg errors.
    """
    async with await connect(database_url) as conn:
        rows = await (await conn.execute(_LIST)).fetchall()
        await _forget(conn, [process for process in (_process(*row) for row in rows) if process.is_gone])


async def _all(runtime: Runtime, conn: Connection) -> list[Process]:
    all_processes = [_process(*row) for row in await (await conn.execute(_LIST)).fetchall()]
    mine = (runtime.system or runtime).process_id
    return [
        replace(process, seconds=0.0, loops=_loops(runtime)) if process.id == str(mine) else process
        for process in all_processes
    ]


def _is_missed(process: Process, all_processes: Sequence[Process]) -> bool:
    played = {role for other in all_processes if other.is_alive for role in other.roles}
    return process.name != CLIENT and not played.issuperset(process.roles)


async def _forget(conn: Connection, dead: Sequence[Process]) -> None:
    await conn.execute("DELETE FROM processes WHERE id = ANY(%s::uuid[])", ([process.id for process in dead],))


def _loops(runtime: Runtime) -> list[LoopState]:
    return [
        LoopState(loop.role, loop.loop, round(loop.seconds, 1), loop.fault, round(loop.slowest_s, 3))
        for loop in runtime.heartbeats.loops
    ]


def _process(
    id_: str,
    name: str,
    host: str,
    pid: int,
    started_at: float,
    roles: list[str],
    loops: list[dict[str, Any]],
    seconds: float,
) -> Process:
    states = [
        LoopState(loop["role"], loop["loop"], loop["seconds"] + seconds, loop["fault"], loop.get("slowest_s", 0.0))
        for loop in loops
    ]
    return Process(id_, name, host, pid, roles, seconds, host == _host() and _is_gone(pid, started_at), states)


def _is_gone(pid: int, started_at: float) -> bool:
    """Returns whether the process has ended; its pid may belong to another process by now."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_at) > 1.0 or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


@cache
def _host() -> str:
    return socket.gethostname()
