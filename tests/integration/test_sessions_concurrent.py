"""Writers of one session in several processes at once: no update is lost, and no turn (P9; B has a mutex)."""

import asyncio
import json
import sys
from collections import Counter

from helpers import session_writer

from turnlog.agent.sessions.sessions import Sessions
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import EventData, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.sessions.lookup import session_state

WRITERS, TURNS = {"p0": 13, "p1": 13, "p2": 12, "p3": 12}, 20


async def test_50_writers_in_4_processes_lose_no_update_while_turns_are_recorded(
    nats_url: str, log: Log, database_url: str, db: Connection, running_projectors: Runner
) -> None:
    async with connection_pool(database_url) as pool, Sessions(log, pool, "default") as sessions:
        await sessions.create("t", user="ann")
        writers = [await start(nats_url, database_url, name, number) for name, number in WRITERS.items()]
        for writer in writers:
            assert writer.stdout is not None
            assert await writer.stdout.readline() == b"ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"go\n")
        for n in range(TURNS):
            await sessions.record("t", [said("user", f"question {n}"), said("assistant", f"answer {n}")])
        ends = [await asyncio.wait_for(writer.communicate(), 120) for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * len(writers), ends
        state = await sessions.get("t")
        await wait_for(db, ("sessions", "messages"), 0, await log.partition_head(0))
        assert await session_state(db, "default", "t") == state
    total = sum(WRITERS.values()) * session_writer.CHANGES
    assert state.global_state["agent_slots"]["counter"] == total
    assert state.global_state["agent_slots"]["by"] == {
        name: number * session_writer.CHANGES for name, number in WRITERS.items()
    }
    assert [message.content for message in state.segment if message.role == "assistant"] == [
        *(f"answer {n}" for n in range(TURNS))
    ]
    types = Counter([one.event.type async for one in log.read_thread("default", "t")])
    assert types == {"session_created": 1, "session_updated": total, "turn_recorded": 2 * TURNS}


async def start(nats_url: str, database_url: str, name: str, writers: int) -> asyncio.subprocess.Process:
    arguments = json.dumps([nats_url, database_url, name, writers])
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable,
        session_writer.__file__,
        arguments,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )


def said(role: str, text: str) -> EventData:
    return TurnRecorded.model_validate({"role": role, "content": text})
