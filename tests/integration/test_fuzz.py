"""Hundreds of malformed and hostile messages arrive while two people talk; each affects at most its own thread."""

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest
from helpers.hostile_messages import Hostile, corpus, plain_turn
from helpers.key_rings import KEK
from helpers.nightly import part
from helpers.personal_events import conversation
from helpers.preloaded_cli import run_command
from helpers.projection_spec import ENGINE_TABLES
from helpers.sample_events import turn
from helpers.servers import eventually, execute
from helpers.stage import MemoryServer, Stage, player

from turnlog.agent.answering.asking import Answered, ask
from turnlog.agent.operations.archives import archive_conversations
from turnlog.agent.operations.jobs.job_states import run_job
from turnlog.agent.operations.lag import REACTORS
from turnlog.agent.operations.tailing import line_at, tail
from turnlog.consumers.cli.console import pretty
from turnlog.events.codec import encode
from turnlog.events.contracts import Event
from turnlog.events.progress import no_progress
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.lag import lag
from turnlog.projectors.models.registry import BY_NAME, PROJECTIONS
from turnlog.projectors.rebuild.rebuild import rebuild_several
from turnlog.projectors.rebuild.verify import verify_several

pytestmark = pytest.mark.slow

THEIRS = "^(talk-|memories/|store/memories.)(ann|bob)$"
TENANT_OF = {"ann": "default", "bob": "acme"}
# Commands on bob's conversation, in each test run.
COMMANDS = """
threads
context THREAD
recall 琥珀 --user USER
memories --user USER
export --user USER
extract --user USER --dry-run
archive --older-than 100 --dry-run
erase --user USER --dry-run
doctor
"""
# Commands on both conversations, with --nightly.
MORE_COMMANDS = """
messages THREAD
receipts THREAD
recall 琥珀 --thread THREAD
export THREAD
tail --from 0 --no-follow
session show THREAD
session context THREAD
session checkpoints THREAD
conflicts --user USER
entities --user USER
compactions --user USER
rederive list
usage
jobs
dead-letters list
keys status
lag
verify
"""


def honest() -> list[Event]:
    """Returns ann's conversation, and bob's in another tenant, with all derived events."""
    bobs = [event.model_copy(update={"tenant": TENANT_OF["bob"]}) for event in conversation("bob", 4)]
    return [event for pair in zip(conversation("ann", 4), bobs, strict=True) for event in pair]


async def told(stage: Stage, events: Sequence[Event], others: Sequence[Hostile]) -> None:
    """Appends the events with hostile messages between them."""
    js, share = stage.runtime.log.nc.jetstream(), len(others) // (len(events) + 1)
    for at, message in enumerate(others):
        await js.publish(f"turnlog.{message.subject}", message.body, headers=message.headers)
        if at % share == 0 and at // share < len(events):
            await stage.runtime.log.append(events[at // share])
    await stage.runtime.wait_until_projected()


async def rows_of_others(stage: Stage) -> dict[str, list[Any]]:
    """Returns every row of ann's and bob's threads. The table usage has no threads, but only they use this provider."""
    rows = {}
    for table in (table for projection in PROJECTIONS for table in projection.tables):
        theirs = f"thread_id ~ '{THEIRS}'" if "thread_id" in table.columns else "provider = 'local'"
        rows[table.name] = await stage.rows(f"SELECT t::text FROM {table.name} t WHERE {theirs} ORDER BY 1")
    return rows


async def empty(nats_url: str, database_url: str) -> None:
    """Deletes log and rows, so that a second run has the same sequences as the first."""
    async with await nats.connect(nats_url) as client:
        await client.jetstream().delete_stream(STREAM)
    tables = {table.name for projection in PROJECTIONS for table in projection.tables} | set(ENGINE_TABLES)
    await execute(database_url, f"TRUNCATE {', '.join(sorted(tables))}")


async def is_clean(stage: Stage) -> bool:
    results = await verify_several(stage.runtime.log, stage.runtime.database_url, PROJECTIONS)
    assert [(result.projection, result.differences) for result in results if not result.clean] == []
    return {result.projection for result in results} == set(BY_NAME)


async def test_hostile_messages_affect_only_their_own_threads(
    nats_url: str, database_url: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    events = honest()
    assert len(corpus()) >= 173
    hostile = [*map(other_content, events[::4]), *part(corpus())]  # the ids are used before and after the events
    play = player(nats_url, database_url, ["projectors"], home=tmp_path)
    async with play() as stage:
        await told(stage, events, [plain_turn(message) for message in hostile])
        expected = await rows_of_others(stage)
        assert len(expected["messages"]) == 2 * (4 + 1)
    await empty(nats_url, database_url)
    async with play() as stage:
        await told(stage, events, hostile)
        copies = [other_content(event)._replace(headers=None) for event in events[::4]]
        await told(stage, [], copies)
        assert await rows_of_others(stage) == expected
        parked = {token for (token,) in await stage.rows("SELECT DISTINCT thread_token FROM dead_letters")}
        assert parked <= {message.subject.split(".")[1] for message in hostile}
        assert parked >= {message.subject.split(".")[1] for message in hostile if is_elsewhere(message)}
        async with stage.runtime.pool.connection() as conn:
            assert {progress.behind for progress in await lag(stage.runtime.log, conn)} == {0}
        assert await is_clean(stage)
        await every_message_is_shown(stage, len(hostile) + len(events) + len(copies))
        await they_work(COMMANDS, stage, "bob", tmp_path)
        if pytestconfig.getoption("nightly"):
            for user in TENANT_OF:
                await they_work(COMMANDS + MORE_COMMANDS, stage, user, tmp_path)
            await rebuild_several(stage.runtime.log, stage.runtime.database_url, PROJECTIONS)
            assert await rows_of_others(stage) == expected
            assert await is_clean(stage)


async def test_reactors_the_agent_analytics_and_jobs_work_despite_hostile_messages(
    nats_url: str, database_url: str, tmp_path: Path, model: MemoryServer
) -> None:
    roles = ["projectors", "reactors", "agent", "analytics"]
    play = player(nats_url, database_url, roles, home=tmp_path, api_base_url=model.url, api_key=model.key, model="m")
    async with play() as stage:
        js = stage.runtime.log.nc.jetstream()
        for message in part(corpus()):
            await js.publish(f"turnlog.{message.subject}", message.body)
        told = [
            piece
            async for piece in ask(stage.runtime, "default", "talk", "Remember that I live in Lisbon.", user="ann")
        ]
        assert isinstance(told[-1], Answered)
        for durable in REACTORS:
            await stage.rest(durable)
        assert await stage.rows("SELECT content FROM memories WHERE thread_id = 'memories/ann'") == [
            ("I live in Lisbon",)
        ]
        await eventually(lambda: is_embedded(stage))
        archived = await archive_conversations(stage.runtime, 100)
        assert (archived.errors, archived.archived > 0) == (0, True)
        for job in ("decay", "compaction"):
            assert (await run_job(stage.runtime, job, datetime.now(UTC), no_progress)).errors == 0


def is_elsewhere(message: Hostile) -> bool:
    """Returns whether the body names another tenant or thread than the subject and a projection handles the type."""
    handled = any(message.subject.rpartition(".")[2] in projection.handles for projection in PROJECTIONS)
    return handled and message.name.endswith(("of another tenant", "of another thread"))


def other_content(honest: Event) -> Hostile:
    """Returns a message with the event's id and message id, but with other words and on another thread."""
    other = turn("other words", thread="hostile-copies").model_copy(update={"id": honest.id})
    headers = {"Nats-Msg-Id": str(honest.id)}
    return Hostile("a copied id", "default.hostile-copies.turn_recorded", encode(other), headers)


async def is_embedded(stage: Stage) -> bool:
    """Returns whether ann's turns and memories have their vectors."""
    query = "SELECT embedding IS NOT NULL FROM {} WHERE tenant = 'default' AND thread_id = '{}'"
    chunks = await stage.rows(query.format("memory_vectors", "talk"))
    return all(embedded for (embedded,) in chunks + await stage.rows(query.format("memories", "memories/ann")))


async def every_message_is_shown(stage: Stage, count: int) -> None:
    shown = [line.text() async for line in tail(stage.runtime, 1, follow=False)]
    assert len(shown) == count
    assert [line for line in shown if not line.isprintable()] == []
    for (seq,) in await stage.rows("SELECT DISTINCT seq FROM dead_letters"):
        assert pretty((await line_at(stage.runtime.log, seq)).document())


async def they_work(commands: str, stage: Stage, user: str, folder: Path) -> None:
    settings = stage.runtime.settings
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    servers = {"NATS_URL": str(settings.nats_url), "DATABASE_URL": str(settings.database_url), "TURNLOG_KEK": KEK}
    environment = {**kept, **servers, "TURNLOG_HOME": str(folder), "TURNLOG_TENANT": TENANT_OF[user]}
    for line in filter(None, commands.split("\n")):
        words = line.replace("THREAD", f"talk-{user}").replace("USER", user).split()
        done = await asyncio.to_thread(run_command, *words, environment=environment)
        # doctor reports the dead letters
        assert (words, done.code) == (words, int(words == ["doctor"])), done.out + done.err
        assert done.out
