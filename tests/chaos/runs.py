"""Chaos test of agent runs: a team answers while its worker is killed at random steps, for instance between tools.

The model is a scripted server of the OpenAI API. Its answers depend only on the request, so a repeated step gets the
same answer.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of the tests' own modules, as in pytest

from helpers.openai_bodies import Step
from helpers.openai_server import Kind, OpenAIServer

from turnlog.agent.answering.request import Question, answer_id, ask, question_events
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers import servers as embedded
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import opened
from turnlog.events.contracts import Event
from turnlog.events.stored import recorded
from turnlog.projectors.engine.parking import listed
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.verify import verify_several

from .gate import OnProgress
from .notebook import CALLS

TESTS = Path(__file__).parents[1]
AT_ONCE = 8  # the number of concurrent runs
ANSWERED_S = 120.0  # the time limit for answers after the last kill
FOREIGN = ("API_", "OPENAI_", "MEMORY_", "TURNLOG_", "NATS_URL", "DATABASE_URL")
STEPS = ("run_planned", "run_tool_called", "run_tool_answered", "run_delegated", "store_item_put", "run_solved")
TOOLS = {"note": ("note_down",), "book": ("note_down", "book")}  # the writing tools, by the first word of a question


@dataclass(frozen=True, slots=True)
class RunsResult:
    """The counts of a chaos run. killed_after: the number of kills by the step before the kill. called: how often
    writing tools were called. effects: how many effects they stored. violations: empty if the run was good."""

    seed: int
    runs: int
    kills: int
    killed_after: dict[str, int]
    called: int
    effects: int
    violations: list[str]


class Planner(OpenAIServer):
    """A model server that plans by the words of the question and answers with the results of the tools. It reports each
    request."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self._tell = tell

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind != "chat":
            return super().next_step(kind, body)
        names = {schema["function"]["name"] for schema in body.get("tools", ())}
        said = [str(message["content"]) for message in body["messages"] if message["role"] == "user"]
        question = next(text for text in reversed(said) if text.startswith(("note ", "book ")))
        self._tell("model plans" if names else "model solves")
        if not names:
            return Step(text=f"Done: {question}.", between=0.002)
        if question.startswith("book ") and "delegate_to_agent" in names:
            handed = {"agent_type": "ledger", "task_description": question}
            return Step(text="The ledger does it.", tool_calls=[("delegate_to_agent", handed)])
        look = ("look_up", {"word": "#E1.done"})
        writes = [(tool, {"text": question}) for tool in TOOLS[question.split()[0]]]
        return Step(text="I write it.", tool_calls=[*writes, look])


@dataclass(slots=True)
class Killer:
    """Kills the worker at random steps: `after` counts steps down, and the worker is killed at zero. It is restarted at
    once, and counting continues when it works again.
    """

    command: list[str]
    environment: dict[str, str]
    home: Path
    rng: random.Random
    kills: int
    after: int = 0
    killed_after: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    worker: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with (self.home / "agent.log").open("ab") as log:
            self.worker = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home
            )
        self.after = self.rng.randint(1, 25)

    def happened(self, step: str) -> None:
        """Counts a step of a run; may be called from any thread."""
        with self.lock:
            if self.worker is None or self.killed_after.total() >= self.kills:
                return
            self.after -= 1
            if self.after > 0:
                return
            self.worker.send_signal(signal.SIGKILL)
            self.worker.wait()
            self.killed_after[step] += 1
            self.start()

    def end(self) -> list[str]:
        """Ends the worker as an operator would, and returns complaints."""
        with self.lock:
            worker, self.worker = self.worker, None
        assert worker is not None
        worker.terminate()
        code = worker.wait(60)
        return [f"the worker ended with {code}"] if code else []


async def run(home: Path, seed: int, runs: int, kills: int, progress: OnProgress) -> RunsResult:
    """Asks `runs` questions, kills the worker `kills` times meanwhile, and judges when all questions are answered."""
    where = await embedded.start(home)
    await embedded.keep(home)
    try:
        settings = Settings(home=home, nats_url=where.nats_url, database_url=where.database_url, plaintext=True)
        async with opened(settings, "turnlog-chaos") as runtime, playing(runtime, ["projectors"]):
            variables = {"NATS_URL": where.nats_url, "DATABASE_URL": where.database_url, "TURNLOG_HOME": str(home)}
            return await _run(runtime, home, variables, seed, runs, kills, progress)
    finally:
        await embedded.stop(home)


async def _run(
    runtime: Runtime, home: Path, servers: dict[str, str], seed: int, runs: int, kills: int, progress: OnProgress
) -> RunsResult:
    rng, told = random.Random(seed), list[Any]()
    with Planner(lambda step: told[0](step)) as model:
        own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        variables = servers | {
            "TURNLOG_TEAM": str(TESTS / "teams" / "notebook"),
            "TURNLOG_PLAINTEXT": "yes",
            "API_BASE_URL": model.url,
            "API_KEY": model.key,
            "TURNLOG_MODEL": "planner",
            "PYTHONPATH": str(TESTS),
        }
        command = [sys.executable, "-m", "turnlog.consumers.cli", "worker", "agent"]
        killer = Killer(command, own | variables, home, rng, kills)
        told.append(killer.happened)
        async with _watched(runtime, killer):
            killer.start()
            try:
                requests, complaints = await _asked(runtime, killer, runs, progress)
            finally:
                complaints_at_end = killer.end() if killer.worker is not None else []
    await runtime.wait_until_projected(60.0)
    complaints += complaints_at_end + await _violations(runtime, requests)
    calls = (home / CALLS).read_text().splitlines()
    killed = dict(sorted(killer.killed_after.items()))
    effects = sum(len(TOOLS[_words(request).split()[0]]) for request in requests)
    return RunsResult(seed, runs, sum(killed.values()), killed, len(calls), effects, complaints)


@contextlib.asynccontextmanager
async def _watched(runtime: Runtime, killer: Killer) -> AsyncIterator[None]:
    """Reports each step that reaches the log to the killer while the block runs."""

    async def on_message(message: Any) -> None:
        kind = message.subject.rsplit(".", 1)[-1]
        if kind in STEPS:
            await asyncio.to_thread(killer.happened, kind)

    watching = await runtime.log.nc.subscribe("turnlog.default.>", cb=on_message)
    try:
        yield
    finally:
        await watching.unsubscribe()


async def _asked(runtime: Runtime, killer: Killer, runs: int, progress: OnProgress) -> tuple[list[Event], list[str]]:
    """Asks questions with AT_ONCE concurrent runs; returns the requests and complaints when all are answered."""
    requests, ended = list[Event](), 0
    deadline = asyncio.get_running_loop().time() + ANSWERED_S
    while ended < runs:
        while len(requests) < min(runs, ended + AT_ONCE):
            number = len(requests)
            words = f"{('note', 'book')[number % 2]} {number}"
            asked = question_events(Question("default", f"run-{number}", words, f"user-{number}"))
            await ask(runtime.log, asked)
            requests.append(asked.request)
        done = await _answered(runtime, requests)
        if done > ended or killer.killed_after.total() < killer.kills:
            ended, deadline = done, asyncio.get_running_loop().time() + ANSWERED_S
        progress("runs answered", ended)
        if asyncio.get_running_loop().time() > deadline:
            return requests, [f"{ended} of {runs} runs were answered; then none for {ANSWERED_S:g} s"]
        await asyncio.sleep(0.1)
    return requests, []


async def _answered(runtime: Runtime, requests: list[Event]) -> int:
    ids = [answer_id(request.id, "answer") for request in requests]
    async with runtime.pool.connection() as conn:
        rows = await conn.execute("SELECT count(*) FROM messages WHERE event_id = ANY(%s)", (ids,))
        (count,) = (await rows.fetchone()) or (0,)
        return int(count)


async def _violations(runtime: Runtime, requests: list[Event]) -> list[str]:
    """Checks that each question has one answer, that each step and each effect was recorded once, and that the rows
    equal a rebuild.

    Events with the same id count as one event, because an event may be stored again after the deduplication window.
    """
    seen, ids = Counter[tuple[UUID | str | None, str]](), set[UUID]()
    async for stored in runtime.log.read(["turnlog.log.>"]):
        event = recorded(stored).event
        if event.id in ids:
            continue
        ids.add(event.id)
        seen[event.causation if event.type.startswith(("run_", "answer_re")) else event.user, event.type] += 1
    problems = list[str]()
    for request in requests:
        tools = TOOLS[_words(request).split()[0]]
        delegated = len(tools) - 1
        wanted = {
            "answer_receipt": 1,
            "run_solved": 1,
            "run_planned": 1 + delegated,
            "run_delegated": delegated,
            "run_tool_called": len(tools) + 1,
            "run_tool_answered": len(tools) + 1,
        }
        counts = {kind: seen[request.id, kind] for kind in wanted}
        counts["store_item_put"], wanted["store_item_put"] = seen[request.user, "store_item_put"], len(tools)
        problems += [
            f"{request.thread}: {counts[kind]} {kind}, not {wanted[kind]}"
            for kind in wanted
            if counts[kind] != wanted[kind]
        ]
    async with runtime.pool.connection() as conn:
        parked = await listed(conn, None)
        rows = await conn.execute("SELECT status, count(*) FROM agent_runs GROUP BY status")
        states: dict[str, int] = dict(await rows.fetchall())
    problems += [f"seq {row['seq']} is parked in {row['projection']}: {row['error']}" for row in parked]
    if states != {"solved": len(requests)}:
        problems.append(f"the runs are {states}")
    for verified in await verify_several(runtime.log, runtime.database_url, PROJECTIONS):
        problems += [
            f"{verified.projection}: {difference.table} [{difference.key}] {difference.kind}"
            for difference in verified.differences
        ]
    return problems


def _words(request: Event) -> str:
    """Returns the words of a request's question, which follow from the number of its thread."""
    number = int(request.thread.removeprefix("run-"))
    return f"{('note', 'book')[number % 2]} {number}"
