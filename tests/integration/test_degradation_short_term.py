"""Sessions work while a server is stopped, and after it is back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from helpers.own_servers import OwnServers, own_servers
from helpers.sample_events import turn
from helpers.servers import eventually, processes_left_in, rows
from helpers.stage import Stage, on_stage
from uuid_utils.compat import uuid7

from turnlog.agent.conversations.sessions import bucket, levels
from turnlog.agent.conversations.sessions.session_memory import ShortTermMemory
from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.agent.conversations.sessions.tail import from_log
from turnlog.agent.conversations.sessions.value import MemoryCreateRequest, MemoryQueryRequest, MemoryWriteRequest
from turnlog.agent.settings import Settings
from turnlog.events import read as reading
from turnlog.events.append import Appender
from turnlog.events.contracts import TurnRecorded
from turnlog.events.errors import LogUnavailable
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.lag import wait_for

# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"),
]
SAID = [TurnRecorded(role="user", content="I ran in Lisbon."), TurnRecorded(role="assistant", content="Well done.")]
MORE = [TurnRecorded(role="user", content="And now?"), TurnRecorded(role="assistant", content="Rest.")]


@pytest.fixture
async def own(home: Path) -> AsyncIterator[OwnServers]:
    async with own_servers(home) as servers:
        yield servers


@pytest.fixture(autouse=True)
def short_wait_for_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the wait for Postgres, because these tests stop it."""
    monkeypatch.setattr(levels, "POSTGRES_PATIENCE_S", 2.0)


@asynccontextmanager
async def sessions_of(stage: Stage) -> AsyncIterator[Sessions]:
    """Yields the sessions of a process that has read none yet."""
    async with Sessions(stage.runtime.log, stage.runtime.pool, "default") as sessions:
        yield sessions


@asynccontextmanager
async def memory_of(stage: Stage) -> AsyncIterator[ShortTermMemory]:
    async with ShortTermMemory(stage.runtime.log, stage.runtime.pool, stage.runtime.settings) as memory:
        yield memory


async def read(sessions: Sessions) -> tuple[int, str, str]:
    """Returns (turns, last answer, level) of the session t."""
    state, level = await sessions.get_with_level("t")
    return state.turn_count, state.last_bot_message, level


async def talk(stage: Stage, sessions: Sessions) -> None:
    await sessions.create("t", user="ann")
    await sessions.record("t", SAID, user="ann")
    await stage.runtime.wait_until_projected()


@pytest.mark.nightly
async def test_without_postgres_a_context_is_refused_with_cause_and_fix(own: OwnServers) -> None:
    async with on_stage(own.settings(), ["projectors"]) as stage:
        await stage.runtime.log.append(turn("I ran in Lisbon."))
        await stage.runtime.wait_until_projected()
    await own.kill("postgres")
    refused = await own.turnlog("context", "t", "--json")
    error = json.loads(refused.out)["error"]
    assert (refused.code, error["code"]) == (1, "database-unavailable")
    assert "connection to server" in error["message"]
    assert "Check DATABASE_URL" in error["message"]
    assert "Traceback" not in refused.err
    await own.back()
    again = json.loads((await own.turnlog("context", "t", "--json")).out)
    assert again["messages"][-1]["content"] == "I ran in Lisbon."


async def test_without_postgres_sessions_are_read_from_memory_from_the_bucket_and_from_the_log(own: OwnServers) -> None:
    async with on_stage(own.settings(), ["projectors"]) as stage, sessions_of(stage) as known:
        await talk(stage, known)
        await own.kill("postgres")
        assert await read(known) == (1, "Well done.", "ram")
        async with sessions_of(stage) as fresh:
            assert await read(fresh) == (1, "Well done.", "kv")
        await empty_bucket(stage)
        async with sessions_of(stage) as fresh:
            assert await read(fresh) == (1, "Well done.", "log")
        await own.back()


async def test_turns_written_without_postgres_are_projected_when_it_is_back(own: OwnServers) -> None:
    async with on_stage(own.settings(), ["projectors"]) as stage, memory_of(stage) as memory:
        await memory.create(MemoryCreateRequest(conversation_id="t", user_id="ann"))
        await stage.runtime.wait_until_projected()
        await own.kill("postgres")
        await memory.write_turn(
            MemoryWriteRequest(conversation_id="t", user_query="I ran in Lisbon.", agent_response="Well done.")
        )
        assert [said.content for said in await stage.all("turn_recorded")] == ["I ran in Lisbon.", "Well done."]
        await own.back()
        async with await connect(own.where.database_url) as conn:
            await wait_for(
                conn, ("messages", "sessions"), 0, await stage.runtime.log.partition_head(0), timeout_s=180.0
            )
            assert await rows(conn, "SELECT content FROM messages ORDER BY seq") == [
                ("I ran in Lisbon.",),
                ("Well done.",),
            ]
            assert await rows(conn, "SELECT turn_count, last_bot_message FROM sessions") == [(1, "Well done.")]


async def test_a_memory_context_is_built_without_postgres(own: OwnServers) -> None:
    asked = MemoryQueryRequest(conversation_id="t", query="Where did I run?")
    async with on_stage(own.settings(), ["projectors"]) as stage, memory_of(stage) as known:
        await known.create(MemoryCreateRequest(conversation_id="t", user_id="ann"))
        await known.write_turn(
            MemoryWriteRequest(conversation_id="t", user_query="I ran in Lisbon.", agent_response="Well done.")
        )
        await stage.runtime.wait_until_projected()
        before = await known.query_memory_context(asked)
        assert before.history == "User: I ran in Lisbon.\nAssistant: Well done."
        await own.kill("postgres")
        assert await known.query_memory_context(asked) == before
        await empty_bucket(stage)
        async with memory_of(stage) as fresh:
            assert await fresh.query_memory_context(asked) == before
        await own.back()


async def test_without_the_bucket_sessions_are_read_from_postgres_and_it_is_created_again(own: OwnServers) -> None:
    async with on_stage(own.settings(), ["projectors"]) as stage:
        async with sessions_of(stage) as first:
            await talk(stage, first)
        for stream in await buckets(stage):
            await stage.runtime.log.nc.jetstream().delete_stream(stream)
        async with sessions_of(stage) as fresh:
            assert await read(fresh) == (1, "Well done.", "postgres")
            await fresh.record("t", MORE)
        assert await buckets(stage) != []
        async with sessions_of(stage) as fresh:
            assert await read(fresh) == (2, "Rest.", "kv")


async def test_sessions_work_while_the_bucket_is_full(own: OwnServers) -> None:
    async with on_stage(own.settings(), ["projectors"]) as stage:
        async with sessions_of(stage) as first:
            await talk(stage, first)
        await empty_bucket(stage)
        js = stage.runtime.log.nc.jetstream()
        [config] = [(await js.stream_info(stream)).config for stream in await buckets(stage)]
        await js.update_stream(config.evolve(max_bytes=1))
        async with sessions_of(stage) as fresh:
            assert await read(fresh) == (1, "Well done.", "postgres")
            await fresh.record("t", MORE)
        await stage.runtime.wait_until_projected()
        async with sessions_of(stage) as fresh:
            assert await read(fresh) == (2, "Rest.", "postgres")
        full = bucket.Bucket(stage.runtime.log, "default")
        copy = await from_log(stage.runtime.log, "default", "t")
        assert copy is not None
        await full.write(copy)
        await js.update_stream(config)
        await full.write(copy)
        assert await full.read("t") == copy, "a full bucket is not taken for one that is away"
        await empty_bucket(stage)
        for level in ("postgres", "kv"):
            async with sessions_of(stage) as fresh:
                assert await read(fresh) == (2, "Rest.", level)


async def test_without_nats_sessions_are_read_and_writes_are_refused_until_it_is_back(
    own: OwnServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "TRIES", 1)
    async with on_stage(own.settings(), ["projectors"]) as stage, sessions_of(stage) as known:
        await talk(stage, known)
        stage.runtime.log.appender = Appender(stage.runtime.log.nc, timeout_s=0.5, ack_s=0.2)
        await own.kill("nats")
        assert await read(known) == (1, "Well done.", "ram")
        async with sessions_of(stage) as fresh:
            assert await read(fresh) == (1, "Well done.", "postgres")
        ids = [uuid7(), uuid7()]
        with pytest.raises(LogUnavailable, match="again"):
            await known.record("t", MORE, ids=ids)
        await own.back()
        stage.runtime.log.appender = Appender(stage.runtime.log.nc)
        assert (await known.record("t", MORE, ids=ids)).turn_count == 2

        async def is_in_the_bucket() -> bool:
            async with sessions_of(stage) as fresh:
                return await read(fresh) == (2, "Rest.", "kv")

        await eventually(is_in_the_bucket)


@pytest.mark.nightly
async def test_without_any_url_a_session_outlives_its_process(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", nats_url=None, database_url=None)
    async with on_stage(settings, ["projectors"]) as stage, sessions_of(stage) as sessions:
        await talk(stage, sessions)
    assert processes_left_in(tmp_path) == []
    async with on_stage(settings, ["projectors"]) as stage, sessions_of(stage) as sessions:
        assert (await read(sessions))[:2] == (1, "Well done.")


async def buckets(stage: Stage) -> list[str]:
    """Returns the streams of key-value buckets."""
    streams = await stage.runtime.log.nc.jetstream().streams_info()
    return [str(stream.config.name) for stream in streams if str(stream.config.name).startswith("KV_")]


async def empty_bucket(stage: Stage) -> None:
    for stream in await buckets(stage):
        await stage.runtime.log.nc.jetstream().purge_stream(stream)
