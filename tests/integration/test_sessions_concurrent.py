"""Concurrent writers of one session in several processes lose neither updates nor turns."""

import asyncio
import json
import os
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import pytest
from helpers import session_writer
from helpers.preloaded_cli import begin_program
from helpers.servers import eventually

from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import EventData, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.sessions.lookup import session_state

WRITERS, TURNS = {"p0": 13, "p1": 13, "p2": 12, "p3": 12}, 20


@pytest.mark.nightly
async def test_50_writers_in_4_processes_lose_no_update_while_turns_are_recorded(
    nats_url: str, log: Log, database_url: str, db: Connection, running_projectors: Runner, tmp_path: Path
) -> None:
    async with connection_pool(database_url) as pool, Sessions(log, pool, "default") as sessions:
        await sessions.create("t", user="ann")
        writers = [await start(tmp_path, nats_url, database_url, name, number) for name, number in WRITERS.items()]
        for writer in writers:
            await eventually(writer.is_ready)
        for writer in writers:
            writer.go()
        for n in range(TURNS):
            await sessions.record("t", [said("user", f"question {n}"), said("assistant", f"answer {n}")])
        for writer in writers:
            await asyncio.to_thread(writer.process.join, 120)
        ends = [writer.output.read_text() for writer in writers]
        assert [writer.process.exitcode for writer in writers] == [0] * len(writers), ends
        state = await sessions.get("t")
        await wait_for(db, ("sessions", "messages"), 0, await log.partition_head(0), timeout_s=180.0)
        assert await session_state(db, "default", "t") == state
    total = sum(WRITERS.values()) * session_writer.CHANGES
    assert state.global_state["agent_slots"]["counter"] == total
    assert state.global_state["agent_slots"]["by"] == {
        name: number * session_writer.CHANGES for name, number in WRITERS.items()
    }
    assert [message.content for message in state.segment if message.role == "assistant"] == [
        *(f"answer {n}" for n in range(TURNS))
    ]
    types = Counter([recorded.event.type async for recorded in log.read_thread("default", "t")])
    assert types == {"session_created": 1, "session_updated": total, "turn_recorded": 2 * TURNS}


@dataclass(frozen=True, slots=True)
class Writer:
    process: BaseProcess
    stdin: TextIO
    output: Path

    async def is_ready(self) -> bool:
        return self.output.read_text() == "ready\n"

    def go(self) -> None:
        with self.stdin as stdin:
            stdin.write("go\n")


async def start(folder: Path, nats_url: str, database_url: str, name: str, writers: int) -> Writer:
    stdin, output = folder / f"{name}.stdin", folder / f"{name}.output"
    os.mkfifo(stdin)
    arguments = json.dumps([nats_url, database_url, name, writers])
    words = (session_writer.__file__, arguments)
    process = begin_program(*words, environment=dict(os.environ), stdin=str(stdin), output=output)
    return Writer(process, await asyncio.to_thread(stdin.open, "w"), output)


def said(role: str, text: str) -> EventData:
    return TurnRecorded.model_validate({"role": role, "content": text})
