"""The command `demo`: follows one conversation from turns to an answer and kills a projector on the way, in a home of
its own.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from turnlog.agent.answering.asking import Answered, ask
from turnlog.agent.answering.context import context_of
from turnlog.agent.counting import counted
from turnlog.agent.operations.importers import Defaults, events, read
from turnlog.agent.operations.lag import projection_lag
from turnlog.agent.operations.sample import THREAD, USER, load_questions, load_sample
from turnlog.agent.operations.tailing import line_at
from turnlog.agent.recall.embedding.pending import pending_count
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.agent.team.runs import list_runs, show_run
from turnlog.agent.team.samples import TEAM, load_applicant
from turnlog.consumers.cli.console import Result, err, say
from turnlog.consumers.cli.options import commands, given
from turnlog.consumers.cli.progress_bars import progress
from turnlog.consumers.cli.rendering import context_lines
from turnlog.consumers.cli.runner import command
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import opened
from turnlog.events.contracts import Event
from turnlog.events.errors import TurnlogError
from turnlog.projectors.models.conversation.thread_lookup import thread_overview
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.rebuild import rebuild
from turnlog.projectors.rebuild.verify import verify

Say = Callable[[str], None]
WINDOW = 12_000
TIMEOUT_S = 600.0  # long, so that the demo does not fail on a busy machine
TEAM_QUESTION = "Which schools fit my profile, and what is the ranking?"
TABLES = tuple(table.name for projection in PROJECTIONS for table in projection.tables)


app = commands()


@command(app, tenant=False)
async def demo(settings: Settings, keep: Annotated[bool, typer.Option(help="Keep the demo's data.")] = False) -> Result:
    """Watch a demonstration: turns → events → rows → context → answer, a killed projector, a run of a team of agents,
    and a rebuild that gives equal rows."""
    report = await demonstrate(settings, keep, (lambda text: None) if given().json else (lambda text: say([text])))
    return Result(report, (), code=int(not report["ok"]))


async def demonstrate(settings: Settings, keep: bool, say: Say) -> dict[str, Any]:
    """Runs the demonstration. The report's "ok" says whether every check passed."""
    home = Path(tempfile.mkdtemp(prefix="turnlog-demo-"))
    own = settings.model_copy(update={"home": home, "nats_url": None, "database_url": None, "log_level": "ERROR"})
    started = time.perf_counter()
    say("NATS and Postgres start …")
    try:
        async with opened(own, "turnlog-demo") as runtime:
            report = await Demonstration(runtime, say).run()
        report["seconds"] = round(time.perf_counter() - started, 1)
        say(f"\nDone in {report['seconds']:g} s; the servers are stopped" + (f", data in {home}" if keep else ""))
        kept = f"TURNLOG_HOME={home} " if keep else ""
        say(f"To see it as a web page: {kept}turnlog up --open" + ("" if keep else ", with data of your own"))
        return report
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


class Demonstration:
    def __init__(self, runtime: Runtime, say: Say) -> None:
        self._runtime, self._say = runtime, say
        tenant = runtime.settings.tenant
        items = events(read(load_sample(), "jsonl", Defaults(tenant=tenant, user=USER)), tenant)
        self._sample = [item for item in items if isinstance(item, Event)]
        self.report: dict[str, Any] = {"ok": True}

    async def run(self) -> dict[str, Any]:
        part = len(self._sample) // 3
        projector = _start_projector(self._runtime.settings)
        try:
            async with playing(self._runtime, ("reactors", "agent")):
                await self._publish(self._sample[:part])
                _kill(projector)
                await self._publish_while_dead(self._sample[part:])
                projector = _start_projector(self._runtime.settings)
                await self._catch_up()
                await self._remember()
                await self._show_rows()
                await self._show_context()
                await self._ask()
            await self.run_of_a_team()
            await self._rebuild()
        finally:
            _end(projector)
        return self.report

    async def _publish(self, part: Sequence[Event]) -> None:
        self._head("1  Turns become events", "events/append.py: append_many, one atomic batch")
        stored = await self._runtime.log.append_many(part)
        for seq in (stored[1].seq, stored[2].seq, stored[-1].seq):
            self._say("   " + (await line_at(self._runtime.log, seq)).text()[:150])
        self._say(f"   {counted(len(part), 'event')} on JetStream, synced to disk")
        await self._runtime.wait_until_projected(TIMEOUT_S, ("messages",))

    async def _publish_while_dead(self, part: Sequence[Event]) -> None:
        self._head("2  The projector is killed (SIGKILL), and turns go on", "nothing that was acknowledged is lost")
        await self._runtime.log.append_many(part)
        behind = max(projection.behind for projection in await projection_lag(self._runtime))
        self._say(f"   {counted(len(part), 'more event')} on the log; the read models are {behind} behind")

    async def _catch_up(self) -> None:
        self._head("3  A new projector takes over", "projectors/engine/apply.py: position and rows in one transaction")
        await self._runtime.wait_until_projected(TIMEOUT_S)
        rows = await _count(self._runtime, "messages")
        turns = sum(event.type == "turn_recorded" for event in self._sample)
        self._check(
            rows == turns,
            f"{counted(rows, 'message')} in Postgres, {counted(turns, 'turn')} published: none lost, none doubled",
        )

    async def _remember(self) -> None:
        self._head("4  Reactors make memory", "consumers/workers/reactors: topics, vectors, summary, then pruning")
        await self._wait_for_reactors()
        async with self._runtime.pool.connection() as conn:
            now = await thread_overview(conn, self._runtime.settings.tenant, THREAD)
        kept = 0 < now.count <= self._runtime.settings.max_messages_per_thread
        text = f"{counted(now.count, 'turn')} kept in the conversation state; the others are in summary and vectors"
        self._check(kept, text)

    async def _wait_for_reactors(self) -> None:
        """Waits until the reactors have done their work. Gives up after TIMEOUT_S without progress.

        Without a terminal for a progress bar, prints the remaining work every 15 seconds.
        """
        first = fewest = await self._left()
        self._say(f"   {counted(first, 'text')} to embed, on one core …")
        moved = told = time.monotonic()
        with progress("embedding", first) as update:
            while left := await self._left():
                update(first - left, first)
                if not err.is_terminal and time.monotonic() - told > 15:
                    told = time.monotonic()
                    self._say(f"   {left} of {first} left")
                if left < fewest:
                    fewest, moved = left, time.monotonic()
                elif time.monotonic() - moved > TIMEOUT_S:
                    raise TurnlogError(
                        f"the reactors embedded, summarised and pruned nothing for {TIMEOUT_S:g} s, with "
                        f"{counted(left, 'text')} left; run with TURNLOG_LOG_LEVEL=INFO to see why"
                    )
                await asyncio.sleep(0.3)

    async def _left(self) -> int:
        """Returns the number of texts without a vector, plus one while old turns are not pruned."""
        await self._runtime.wait_until_projected(TIMEOUT_S)
        async with self._runtime.pool.connection() as conn:
            now = await thread_overview(conn, self._runtime.settings.tenant, THREAD)
            pruned = now.pruned_through > 0 and now.count <= self._runtime.settings.max_messages_per_thread
            return await pending_count(conn, None) + (not pruned)

    async def _show_rows(self) -> None:
        self._head("5  Rows", "one table per read model, all derived from the log")
        counts = {name: await _count(self._runtime, name) for name in TABLES}
        self.report["rows"] = counts
        for name, count in counts.items():
            self._say(f"   {name:<24} {count:>6}")

    async def _show_context(self) -> None:
        self._head("6  The context a model gets", f"agent/context: three tiers in a window of {WINDOW:,} tokens")
        prepared = await context_of(self._runtime, self._runtime.settings.tenant, THREAD, window=WINDOW)
        context = prepared.context
        for line in context_lines(context)[:9]:
            self._say("   " + line)
        used = sum(tier.tokens for tier in context.tiers)
        self._check(used <= context.budget, f"{used:,} of {context.budget:,} tokens used")

    async def _ask(self) -> None:
        self._head(
            "7  A question about the beginning",
            "consumers/workers/answering.py: recall_memory, stream, answer, receipt",
        )
        for language in ("en", "zh"):
            question = next(question for question in load_questions() if question.language == language)
            self._say(f"   > {question.question}")
            tenant = self._runtime.settings.tenant
            async for piece in ask(self._runtime, tenant, THREAD, question.question, user=USER):
                if isinstance(piece, Answered):
                    for line in piece.answer.splitlines():
                        self._say("   " + line[:150])
                    self._check(bool(piece.answer), f"answered once, on the log at sequence {piece.seq}")

    async def run_of_a_team(self) -> None:
        """Asks one question, which one agent hands on and another answers with two tools."""
        self._head("8  A team of agents, every step on the log", "agent/team: plan, tools, hand-over; `turnlog runs`")
        settings = self._runtime.settings.model_copy(update={"team": TEAM})
        tenant = settings.tenant
        async with opened(settings, "turnlog-demo-team") as runtime, playing(runtime, ("agent",)):
            loaded = await load_applicant(runtime, tenant, USER)
            self._say(f"   {USER} has the profile of {loaded.name} ({loaded.note})")
            self._say(f"   > {TEAM_QUESTION}")
            answer = ""
            async for piece in ask(runtime, tenant, "advice", TEAM_QUESTION, user=USER):
                answer = piece.answer if isinstance(piece, Answered) else answer
            [run] = await list_runs(runtime, tenant, USER, "advice")
            steps = (await show_run(runtime, tenant, run.run_id)).steps
        for step in steps:
            if step.kind in ("plan", "delegation", "result"):
                planned = ", ".join(call["name"] for call in step.calls or ())
                took = f"after {step.latency_ms:,} ms" if step.kind == "result" else ""
                self._say(f"   {step.agent:<13} {step.kind:<11} {step.name or planned} {took}".rstrip())
        for line in answer.splitlines()[:3]:
            self._say("   " + line[:130])
        tools = [step.name for step in steps if step.kind == "result" and not step.is_error]
        handed_on = any(step.kind == "delegation" for step in steps)
        # A language model may plan differently; the rules always plan this.
        as_planned = not settings.offline or (handed_on and len(tools) == 2)
        self._check(
            run.status == "solved" and as_planned,
            f"{counted(len(steps), 'step')}, {counted(len(tools), 'tool')}{', one hand-over' * handed_on}",
        )

    async def _rebuild(self) -> None:
        self._head(
            "9  Everything again from the log",
            "projectors/rebuild/: shadow tables, atomic switch; no model call",
        )
        await self._runtime.wait_until_projected(TIMEOUT_S)  # the reactors have ended, so no new events arrive
        for projection in PROJECTIONS:
            before = await verify(self._runtime.log, self._runtime.database_url, projection)
            made = await rebuild(self._runtime.log, self._runtime.database_url, projection)
            await self._runtime.wait_until_projected(TIMEOUT_S)
            after = await verify(self._runtime.log, self._runtime.database_url, projection)
            same = before.clean and after.clean and before.checksum == after.checksum
            rows = counted(after.rows, "row")
            text = f"{projection.name:<16} {rows:>11}, {made.events_per_s:,.0f} events/s, checksum unchanged"
            self._check(same, text)

    def _head(self, title: str, where: str) -> None:
        self._say(f"\n{title}\n   ({where})")

    def _check(self, holds: bool, text: str) -> None:
        self.report["ok"] = self.report["ok"] and holds
        self._say(f"   {'✓' if holds else '✗ FAILED:'} {text}")


def _start_projector(settings: Settings) -> "subprocess.Popen[bytes]":
    hidden = {"NATS_URL", "DATABASE_URL"}
    return subprocess.Popen(
        [sys.executable, "-m", "turnlog.consumers.cli", "worker", "projectors"],
        env={**{k: v for k, v in os.environ.items() if k not in hidden}, "TURNLOG_HOME": str(settings.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        _kill(process)


async def _count(runtime: Runtime, table: str) -> int:
    async with runtime.pool.connection() as conn:
        row = await (await conn.execute(f"SELECT count(*) FROM {table}".encode())).fetchone()
    return int(row[0]) if row else 0
