"""A session on a fork contains the fork's shared past and owner, but nothing of a deleted parent."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from helpers.sample_events import event, turn
from helpers.session_processes import Processes, contents, turn_data
from helpers.short_term_memory import create, memory_of, query
from helpers.stage import Play, Stage, player

from turnlog.agent.conversations.forks import fork
from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.agent.conversations.sessions.value import MemoryCreateRequest, MemoryWriteRequest
from turnlog.events.contracts import (
    Erased,
    EventData,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SessionCreated,
    ThreadDeleted,
)
from turnlog.events.errors import NotFound
from turnlog.projectors.models.sessions.state import SessionState

PAST = [("May in Lisbon?", "user"), ("May is mild.", "assistant"), ("900 euros?", "user"), ("It will do.", "assistant")]


@pytest.fixture
async def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ("projectors",))


async def past(stage: Stage, user: str | None = "ann", thread: str = "t") -> list[int]:
    """Appends the turns of PAST and returns their sequences."""
    turns = [turn(text, role, thread, user=user if role == "user" else None) for text, role in PAST]
    return [appended.seq for appended in await stage.runtime.log.append_many(turns)]


async def forked(stage: Stage, at: int, new: str = "f", parent: str = "t") -> None:
    await stage.runtime.wait_until_projected()
    async with stage.runtime.pool.connection() as conn:
        await fork(conn, stage.runtime.log, "default", parent, at, new)
    await stage.runtime.wait_until_projected()


async def at_every_level(stage: Stage, thread: str = "f") -> SessionState:
    """Returns the session as new processes read it, after checking that Postgres and the log yield the same."""
    async with AsyncExitStack() as stack:
        bench = Processes(stage.runtime.log, stage.runtime.pool, stack)
        await stage.runtime.wait_until_projected()
        state, level = await (await bench.process()).get_with_level(thread)
        assert level == "postgres"
        async with without_row(stage, thread):
            assert await (await bench.process()).get_with_level(thread) == (state, "log")
    return state


@asynccontextmanager
async def without_row(stage: Stage, thread: str) -> AsyncIterator[None]:
    async with stage.runtime.pool.connection() as conn:
        await conn.execute("UPDATE sessions SET thread_id = 'hidden' WHERE thread_id = %s", (thread,))
    yield
    async with stage.runtime.pool.connection() as conn:
        await conn.execute("UPDATE sessions SET thread_id = %s WHERE thread_id = 'hidden'", (thread,))


def words(count: int) -> list[str]:
    return [text for text, _ in PAST[:count]]


def on_fork(**more: Any) -> MemoryCreateRequest:
    return create(conversation_id="f", **more)


async def test_a_fork_begins_its_session_with_the_whole_shared_past_and_not_with_what_the_parent_said_later(
    play: Play,
) -> None:
    async with play() as stage, memory_of(stage) as memory:
        seqs = await past(stage)
        await forked(stage, seqs[1])
        await stage.runtime.log.append(turn("later, in the parent", "user", user="ann"))
        made = await memory.create(on_fork(user_id=None))
        asked = query().model_copy(update={"conversation_id": "f"})
        context = await memory.query_memory_context(asked)
        assert (made.meta.user_id, made.flow_context.turn_count) == ("ann", 1)
        assert made.flow_context.last_bot_message == "May is mild."
        assert context.history == "User: May in Lisbon?\nAssistant: May is mild."
        written = MemoryWriteRequest(conversation_id="f", user_query="And Porto?", agent_response="Wetter.")
        await memory.write_turn(written)
        context = await memory.query_memory_context(asked)
        assert context.history == "User: May in Lisbon?\nAssistant: May is mild.\nUser: And Porto?\nAssistant: Wetter."
        state = await at_every_level(stage)
    assert contents(state) == [*words(2), "And Porto?", "Wetter."]
    assert (state.turn_count, state.shared_seq) == (2, seqs[1])


async def test_nobody_else_gets_a_session_on_somebodys_fork(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        seqs = await past(stage)
        await forked(stage, seqs[1])
        await forked(stage, seqs[3], "g")
        await stage.runtime.log.append(turn("mine", thread="g", user="bob"))
        head = await stage.runtime.log.head()
        for thread in "tfg":
            with pytest.raises(NotFound, match=r"create\(\) begins one"):
                await memory.create(create(conversation_id=thread, user_id="bob"))
        assert await stage.runtime.log.head() == head
        await stage.runtime.log.append(event(ThreadDeleted()))
        with pytest.raises(NotFound, match=r"create\(\) begins one"):
            await memory.create(on_fork(user_id="bob"))
        made = await memory.create(on_fork())
    assert (made.meta.user_id, made.flow_context.turn_count) == ("ann", 0)


async def test_a_fork_of_turns_without_a_user_belongs_to_the_user_of_the_parents_session(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        seqs = await past(stage, user=None)
        await memory.create(create())
        await forked(stage, seqs[1])
        with pytest.raises(NotFound):
            await memory.create(on_fork(user_id="bob"))
        assert (await memory.create(on_fork(user_id=None))).meta.user_id == "ann"


async def test_a_fork_of_a_fork_has_the_turns_of_all_its_ancestors(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        seqs = await past(stage)
        await forked(stage, seqs[1])
        [second] = await stage.say(5, 5, "f")
        await stage.say(6, 6, "f")
        await forked(stage, second, "g", "f")
        made = await memory.create(create(conversation_id="g"))
        state = await at_every_level(stage, "g")
        await stage.runtime.log.append(event(ThreadDeleted(), "f"))
        assert contents(await at_every_level(stage, "g")) == []
    assert (contents(state), made.flow_context.turn_count) == ([*words(2), "message 5"], 1)


async def test_a_checkpoint_ends_the_shared_past_and_a_failed_one_brings_it_back(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory, at_work(stage) as sessions:
        seqs = await past(stage)
        await forked(stage, seqs[3])
        await memory.create(on_fork())
        await sessions.record("f", [turn_data("On?"), turn_data("On.", "assistant")])
        for covered, shown in ((seqs[1], [*words(4)[2:], "On?", "On."]), (seqs[3], ["On?", "On."])):
            checkpoint = ended(covered)
            await sessions.change("f", lambda state, made=checkpoint: [made])
            assert contents(await sessions.get("f")) == shown
        await stage.runtime.wait_until_projected()
        assert (await sessions.get_with_level("f"))[1] == "ram"
        failed = SegmentCheckpointFailed(attempts=3, error="away")
        await sessions.change("f", lambda state: [failed])
        state = await at_every_level(stage)
        assert await sessions.get("f") == state
        assert contents(state) == [*words(4), "On?", "On."]
        reset = await sessions.change("f", lambda state: [SessionCreated()])
    assert contents(reset) == []


@pytest.mark.parametrize("removal", [ThreadDeleted(), Erased()])
async def test_a_deleted_parent_takes_its_turns_out_of_the_sessions_of_its_forks(
    play: Play, removal: EventData
) -> None:
    async with play() as stage, memory_of(stage) as memory, at_work(stage) as sessions:
        seqs = await past(stage)
        await forked(stage, seqs[3])
        await memory.create(on_fork())
        await sessions.record("f", [turn_data("On?"), turn_data("On.", "assistant")])
        assert contents(await sessions.get("f")) == [*words(4), "On?", "On."]
        await stage.runtime.log.append(event(removal))
        await stage.runtime.wait_until_projected()
        assert contents(await sessions.get("f")) == ["On?", "On."]
        assert contents(await at_every_level(stage)) == ["On?", "On."]


@asynccontextmanager
async def at_work(stage: Stage) -> AsyncIterator[Sessions]:
    async with Sessions(stage.runtime.log, stage.runtime.pool, "default") as sessions:
        yield sessions


def ended(covered: int) -> SegmentCheckpointed:
    return SegmentCheckpointed(summary="S.", recent_turns=1, covered_seq=covered, turns_covered=1, trigger="manual")
