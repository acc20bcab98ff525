"""Short-term memory is used by several callers, processes, users and tenants at once."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from helpers.short_term_memory import SMALL, create, memory_of, query, shown_turns, write, write_turns
from helpers.stage import MemoryServer, Play, player
from prometheus_client import REGISTRY

from turnlog.agent.conversations.sessions.value import InvalidMemoryRequest, MemoryWriteRequest, SessionValue
from turnlog.consumers.workers.reactors.segments import NAME
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors")


@pytest.fixture
async def play(nats_url: str, database_url: str, model: MemoryServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    # because only segments are summarised here
    return player(nats_url, database_url, ROLES, **settings, enable_summary=False)


async def test_repeated_queries_of_one_state_ask_for_one_checkpoint(play: Play) -> None:
    async with play("projectors") as stage, memory_of(stage) as memory:
        await memory.create(create())
        await write_turns(memory, 1, 16)
        contexts = await asyncio.gather(*(memory.query_memory_context(query()) for _ in range(20)))
        assert all(context.should_checkpoint_summary for context in contexts)
        await stage.until("segment_checkpoint_requested", 1)
        async with memory_of(stage) as another:
            await another.query_memory_context(query())
        [request] = await stage.all("segment_checkpoint_requested")
    assert request.token_ratio == contexts[0].token_ratio
    assert request.rules.model_context_window == SMALL


async def test_checkpoints_and_turns_at_the_same_time_lose_nothing(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory, memory_of(stage) as other:
        await memory.create(create(model_context_window=16_000))
        await write_turns(memory, 1, 10)
        turns = [other.write_turn(write(number)) for number in range(11, 16)]
        await asyncio.gather(*turns, memory.checkpoint("t", "One.", 2), other.checkpoint("t", "Two.", 4))
        await stage.runtime.wait_until_projected()
        stored = await memory.checkpoints("t")
        context = await memory.query_memory_context(query())
    assert {checkpoint.summary for checkpoint in stored} == {"One.", "Two."}
    assert context.session.flow_context.turn_count == 15
    assert len(shown_turns(context, 15)) == 15 - stored[-1].turns_covered


async def test_nobody_reads_across_tenants_or_users(play: Play) -> None:
    async with play() as stage, memory_of(stage, "clinic") as memory, memory_of(stage, "other") as stranger:
        await memory.create(create())
        assert (await memory.query_memory_context(query(enterprise_id="clinic", patient_id="ann"))).history == ""
        for request in (query(enterprise_id="other"), query(patient_id="bob")):
            with pytest.raises(NotFound, match=r"create\(\)"):
                await memory.query_memory_context(request)
        with pytest.raises(NotFound):
            await stranger.get("t")
        with pytest.raises(NotFound):
            await memory.create(create(user_id="bob"))
        with pytest.raises(NotFound):
            await memory.write_turn(write(1).model_copy(update={"user_id": "bob"}))


def with_slot(agent: str, slot: str) -> Any:
    def change(value: SessionValue) -> SessionValue:
        state = value.global_state
        slots = {**state.agent_slots, agent: {"slot": slot}}
        return value.model_copy(update={"global_state": state.model_copy(update={"agent_slots": slots})})

    return change


async def test_updates_of_several_writers_at_once_are_all_kept(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory, memory_of(stage) as other:
        await memory.create(create())
        await asyncio.gather(*((memory, other)[n % 2].update("t", with_slot(f"agent-{n}", str(n))) for n in range(8)))
        await stage.runtime.wait_until_projected()
        value = await memory.get("t")
    assert value.global_state.agent_slots == {f"agent-{n}": {"slot": str(n)} for n in range(8)}


async def test_processes_that_cross_the_threshold_at_once_get_one_checkpoint(
    play: Play, nats_url: str, model: MemoryServer
) -> None:
    async with play() as stage, memory_of(stage) as memory:
        log = await Log.connect(nats_url, StreamOptions(), keyring=stage.runtime.log.keyring)
        async with memory_of(stage, log=log) as other:
            await memory.create(create())
            await write_turns(memory, 1, 16)
            both = (memory, other)
            for _ in range(5):
                await asyncio.gather(*(each.query_memory_context(query()) for each in both))
            await stage.until("segment_checkpointed", 1)
            contexts = await asyncio.gather(*(each.query_memory_context(query()) for each in both))
            await stage.rest(NAME)
            assert len(await stage.all("segment_checkpointed")) == 1
        await log.close()
    assert [context.mode for context in contexts] == ["SUMMARY_N"] * 2
    assert len(model.asked("summary")) == 1


@pytest.mark.nightly
async def test_a_conversation_that_never_pauses_still_gets_checkpoints(play: Play, model: MemoryServer) -> None:
    """Chinese turns follow each other without a pause while the model answers slowly."""
    model.said["summary"] = "患者最近头晕。"
    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create(model_context_window=1_200))
        number = checkpoints = 0
        while checkpoints < 2:
            number += 1
            assert number <= 300, "the conversation is always first"
            context = await memory.query_memory_context(query(f"第{number}个问题：我最近头晕，应该怎么办？"))
            await memory.write_turn(
                MemoryWriteRequest(
                    conversation_id="t",
                    user_query=f"question {number} 我最近感觉头晕，应该怎么办？",
                    agent_response="请先量血压，保持规律作息，必要时就医检查。",
                )
            )
            checkpoints = len(await memory.checkpoints("t"))
        await stage.rest(NAME)
        covered = (await memory.checkpoints("t"))[-1].turns_covered
        # The window is large enough for all turns that come while a slow machine makes the summary.
        context = await memory.query_memory_context(query(model_context_window=100_000))
    assert context.session.flow_context.turn_count == number
    assert shown_turns(context, number) == list(range(covered + 1, number + 1))


async def test_two_users_who_begin_one_conversation_at_once_do_not_share_it(play: Play) -> None:
    async with play("projectors") as stage, memory_of(stage) as memory, memory_of(stage) as other:
        for n in range(10):
            requests = [create(conversation_id=f"c{n}", user_id=user) for user in ("ann", "bob")]
            begun = await asyncio.gather(memory.create(requests[0]), other.create(requests[1]), return_exceptions=True)
            [refused] = [outcome for outcome in begun if isinstance(outcome, BaseException)]
            [value] = [outcome for outcome in begun if isinstance(outcome, SessionValue)]
            assert isinstance(refused, NotFound)
            assert (await memory.get(f"c{n}")).meta.user_id == value.meta.user_id


async def test_a_reset_loses_no_update_that_was_first(play: Play) -> None:
    async with play("projectors") as stage, memory_of(stage) as memory, memory_of(stage) as other:
        await memory.create(create())
        for n in range(10):
            await asyncio.gather(other.update("t", with_preference(f"p{n}")), memory.reset("t"))
        value = await memory.get("t")
    assert value.user_snapshot.preferences == tuple(f"p{n}" for n in range(10))


def with_preference(wish: str) -> Any:
    def change(value: SessionValue) -> SessionValue:
        snapshot = value.user_snapshot
        wishes = (*snapshot.preferences, wish)
        return value.model_copy(update={"user_snapshot": snapshot.model_copy(update={"preferences": wishes})})

    return change


async def test_a_turn_that_is_written_again_with_its_id_is_one_turn(play: Play) -> None:
    first, second = uuid4(), uuid4()
    async with play("projectors") as stage, memory_of(stage) as memory, memory_of(stage) as other:
        await memory.create(create())
        for turn_id in (first, first, second):
            await memory.write_turn(write(1).model_copy(update={"turn_id": turn_id}))
        await memory.checkpoint("t", "All of it.", 0)
        written = await other.write_turn(write(1).model_copy(update={"turn_id": first}))
        assert (await other.get("t")).flow_context.turn_count == 2
        assert len(await stage.all("turn_recorded")) == 4
    assert written.mode == "SUMMARY_N"


async def test_a_negative_number_of_turns_is_refused_with_a_code_and_nothing_is_stored(play: Play) -> None:
    async with play("projectors") as stage, memory_of(stage) as memory:
        await memory.create(create())
        await memory.write_turn(write(1))
        head = await stage.runtime.log.head()
        with pytest.raises(InvalidMemoryRequest, match="recent_turns is -3; give 0 or more") as refused:
            await memory.checkpoint("t", "All of it.", -3)
        assert refused.value.code == "invalid-memory-request"
        assert await stage.runtime.log.head() == head


async def test_turns_without_a_user_belong_to_the_sessions_user(play: Play) -> None:
    async with play("projectors") as stage, memory_of(stage) as memory:
        await memory.create(create())
        await memory.write_turn(write(1))
        await memory.checkpoint("t", "All of it.", 0)
        await memory.update("t", with_preference("mornings"))
        await memory.reset("t")
        assert {event.user for event in await stage.events()} == {"ann"}


async def test_an_empty_text_counts_as_an_omitted_field(play: Play) -> None:
    async with play("projectors") as stage, memory_of(stage) as memory:
        await memory.create(create(agent_code=""))
        await memory.write_turn(MemoryWriteRequest(conversation_id="t", user_id="", agent_code="", user_query="hello"))
        assert (await memory.query_memory_context(query(enterprise_id="", patient_id=""))).history == "User: hello"
        assert (await memory.create(create(user_id=""))).meta.user_id == "ann"


async def test_every_operation_is_recorded_in_the_metrics(play: Play) -> None:
    """Checks the metrics of checkpoints, lengths of summaries, token ratios, and read times of each store."""
    names = {
        "turnlog_session_checkpoints_total": {"trigger": "automatic", "outcome": "made"},
        "turnlog_session_summary_tokens_count": {},
        "turnlog_session_token_ratio_count": {},
        "turnlog_session_query_seconds_count": {},
    }

    def values() -> list[float]:
        return [REGISTRY.get_sample_value(name, labels) or 0.0 for name, labels in names.items()]

    def reads() -> dict[str, float]:
        name = "turnlog_session_read_seconds_count"
        return {level: REGISTRY.get_sample_value(name, {"level": level}) or 0.0 for level in ("ram", "kv", "postgres")}

    before, read_before = values(), reads()
    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create())
        await write_turns(memory, 1, 16)
        await memory.query_memory_context(query())
        await stage.until("segment_checkpointed", 1)
        await stage.rest(NAME)
        async with memory_of(stage) as fresh:
            await fresh.get("t")
        await stage.runtime.log.nc.jetstream().purge_stream("KV_turnlog_sessions")
        async with memory_of(stage) as fresh:
            await fresh.get("t")
    assert [after - was for after, was in zip(values(), before, strict=True)] == [1, 1, 1, 1]
    assert {level for level, count in reads().items() if count > read_before[level]} == {"ram", "kv", "postgres"}
