"""The segment reactor makes one checkpoint for each request, even after redeliveries and crashes."""

import threading
from functools import partial
from typing import Any

import pytest
from helpers.lone_reactors import making_checkpoints
from helpers.openai_bodies import Step
from helpers.sample_events import event
from helpers.servers import eventually, rows
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.models import calls
from turnlog.agent.models.calls import Breaker
from turnlog.consumers.workers.reactors.segments import NAME, SOURCE
from turnlog.events.contracts import (
    Event,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SegmentCheckpointRequested,
    SegmentRules,
    SessionCreated,
    ThreadDeleted,
)
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.database import connect
from turnlog.projectors.models.sessions.lookup import segment_checkpoints, session_state
from turnlog.projectors.models.sessions.state import SessionState

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors")
RULES = SegmentRules(model_context_window=2_000)


@pytest.fixture
async def play(nats_url: str, database_url: str, model: MemoryServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "model_timeout_s": 20.0}
    # because only segments are summarised here
    return player(nats_url, database_url, ROLES, **settings, enable_summary=False)


async def begin(stage: Stage, exchanges: int = 12) -> list[int]:
    """Appends a session with this many questions and answers; returns the sequences of the messages."""
    await stage.runtime.log.append(event(SessionCreated(rules=RULES)))
    return await stage.say(1, 2 * exchanges)


async def ask(stage: Stage, through_seq: int, rules: SegmentRules = RULES) -> Event:
    data = SegmentCheckpointRequested(rules=rules, estimated_tokens=1_600, token_ratio=0.8, through_seq=through_seq)
    request = event(data)
    await stage.runtime.log.append(request)
    return request


async def session(stage: Stage) -> SessionState:
    await stage.runtime.wait_until_projected()
    async with stage.runtime.pool.connection() as conn:
        state = await session_state(conn, "default", "t")
    assert state is not None
    return state


async def until_asked(model: MemoryServer) -> None:
    async def is_asked_for() -> bool:
        return bool(model.asked("summary"))

    await eventually(is_asked_for)


async def made_by_the_reactor(stage: Stage) -> list[Event]:
    return [event for event in await stage.events() if event.source == SOURCE]


async def test_a_request_becomes_a_checkpoint_that_keeps_the_last_eight_turns(play: Play, model: MemoryServer) -> None:
    async with play() as stage:
        seqs = await begin(stage)
        request = await ask(stage, seqs[-1])
        [made] = await stage.until("segment_checkpointed", 1)
        now = await session(stage)
        [stored] = [event for event in await stage.events() if event.type == "segment_checkpointed"]
        usage = [metered for metered in await stage.all("usage_metered") if metered.purpose == "summary"]
    assert (made.covered_seq, made.turns_covered, made.recent_turns) == (seqs[7], 4, 8)
    assert (made.summary, made.trigger, stored.causation) == ("They planned a trip.", "automatic", request.id)
    assert (made.derivation.from_seq, made.derivation.through_seq) == (seqs[0], seqs[7])
    assert (now.mode, [message.seq for message in now.segment]) == ("SUMMARY_N", seqs[8:])
    assert len(usage) == 1


async def test_the_next_summary_is_made_of_the_one_before_and_the_turns_since(play: Play, model: MemoryServer) -> None:
    async with play() as stage:
        await ask(stage, (await begin(stage))[-1])
        await stage.until("segment_checkpointed", 1)
        model.said["summary"] = "They booked it."
        later = await stage.say(25, 40)
        await ask(stage, later[-1])
        [_, second] = await stage.until("segment_checkpointed", 2)
        async with stage.runtime.pool.connection() as conn:
            history = await segment_checkpoints(conn, "default", "t")
    assert second.summary == "They planned a trip.\nThey booked it."
    assert [checkpoint.turns_covered for checkpoint in history] == [4, 12]
    assert "message 24" in str(model.asked("summary")[1]) and "message 25" not in str(model.asked("summary")[1])


async def test_a_request_that_is_delivered_again_makes_no_second_checkpoint(play: Play, model: MemoryServer) -> None:
    async with play() as stage:
        await ask(stage, (await begin(stage))[-1])
        await stage.until("segment_checkpointed", 1)
        await stage.rest(NAME)
        before = await made_by_the_reactor(stage)
        await stage.runtime.log.nc.jetstream().delete_consumer(STREAM, NAME)
    async with play() as stage:
        await stage.rest(NAME)
        assert await made_by_the_reactor(stage) == before
    assert len(model.asked("summary")) == 1


async def test_several_requests_of_one_moment_make_one_checkpoint(play: Play, model: MemoryServer) -> None:
    async with play("projectors") as stage:
        seqs = await begin(stage)
        for through in seqs[-4:]:
            await ask(stage, through)
    async with play() as stage:
        await stage.until("segment_checkpointed", 1)
        await stage.rest(NAME)
        assert len(await stage.all("segment_checkpointed")) == 1
    assert len(model.asked("summary")) == 1


async def test_dying_between_the_models_answer_and_the_append_costs_no_second_call(
    play: Play, model: MemoryServer, database_url: str
) -> None:
    """The ledger's table is locked, so that the work waits after the cached answer until the process has ended."""
    model.first["summary"] = [Step(text="They planned a trip.", until=(answer := threading.Event()))]
    async with await connect(database_url) as conn:
        async with play() as stage:
            await ask(stage, (await begin(stage))[-1])

            async def is_answered() -> bool:
                return bool(await rows(conn, "SELECT FROM model_cache WHERE response::jsonb ? 'text'"))

            await until_asked(model)
            await conn.execute("BEGIN")
            await conn.execute("LOCK TABLE reactor_spending IN ACCESS EXCLUSIVE MODE")
            answer.set()
            await eventually(is_answered)
            assert await stage.all("segment_checkpointed") == []
            await stage.runtime.log.nc.jetstream().delete_consumer(STREAM, NAME)  # otherwise the wait is 30 s
        await conn.execute("ROLLBACK")
    async with play() as stage:
        await stage.until("segment_checkpointed", 1)
        await stage.rest(NAME)
        assert len(await stage.all("segment_checkpointed")) == 1
        assert await stage.rows("SELECT calls FROM usage WHERE purpose = 'summary'") == [(1,)]
    assert len(model.asked("summary")) == 1


async def test_a_turn_that_arrives_while_the_model_works_is_neither_lost_nor_covered(
    play: Play, model: MemoryServer
) -> None:
    model.first["summary"] = [Step(text="They planned a trip.", until=(answer := threading.Event()))]
    async with play() as stage:
        seqs = await begin(stage)
        await ask(stage, seqs[-1])
        await until_asked(model)
        [late] = await stage.say(25, 25)
        answer.set()
        [made] = await stage.until("segment_checkpointed", 1)
        now = await session(stage)
    assert made.covered_seq == seqs[7]
    assert [message.seq for message in now.segment] == [*seqs[8:], late]


async def test_a_checkpoint_does_not_wait_for_the_projections_of_a_conversation_that_goes_on(
    play: Play, model: MemoryServer, database_url: str
) -> None:
    """Otherwise new turns would arrive during each wait, and a busy conversation would never be summarised."""
    model.first["summary"] = [Step(text="They planned a trip.", until=(answer := threading.Event()))]
    async with play() as stage, await connect(database_url) as conn:
        await ask(stage, (await begin(stage))[-1])

        async def is_made() -> bool:
            return bool(await stage.all("segment_checkpointed"))

        await until_asked(model)
        await conn.execute("BEGIN")
        await conn.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
        [late] = await stage.say(25, 25)
        answer.set()
        await eventually(is_made)
        await conn.execute("ROLLBACK")
        assert [message.seq for message in (await session(stage)).segment][-1] == late


@pytest.mark.parametrize(
    "overtaken_by",
    [
        SessionCreated(rules=RULES),
        SegmentCheckpointed(summary="By hand.", recent_turns=8, covered_seq=9, turns_covered=4, trigger="manual"),
        SegmentCheckpointFailed(attempts=3, error="model-unavailable: gone"),
        ThreadDeleted(),
    ],
    ids=lambda data: data.type,
)
async def test_an_outdated_request_does_nothing(play: Play, model: MemoryServer, overtaken_by: Any) -> None:
    async with play("projectors") as stage:
        await ask(stage, (await begin(stage))[-1])
        await stage.runtime.log.append(event(overtaken_by))
    async with play() as stage:
        await stage.rest(NAME)
        assert await made_by_the_reactor(stage) == []
    assert model.asked("summary") == []


async def test_a_request_that_was_decided_before_a_checkpoint_and_stored_after_it_does_nothing(
    play: Play, model: MemoryServer
) -> None:
    async with play("projectors") as stage:
        await ask(stage, (await begin(stage))[-1])
        late = await stage.say(25, 32)
    async with play() as stage:
        await stage.until("segment_checkpointed", 1)
        await ask(stage, late[-1])
        await stage.rest(NAME)
        assert len(await stage.all("segment_checkpointed")) == 1
    assert len(model.asked("summary")) == 1


@pytest.mark.parametrize("overtaken_by", [SessionCreated(rules=RULES), ThreadDeleted()], ids=lambda data: data.type)
async def test_an_event_that_ends_the_segment_during_the_model_call_wins_and_the_cost_is_metered(
    play: Play, model: MemoryServer, overtaken_by: Any
) -> None:
    model.first["summary"] = [Step(text="too late", until=(answer := threading.Event()))]
    async with play() as stage:
        await ask(stage, (await begin(stage))[-1])
        await until_asked(model)
        await stage.runtime.log.append(event(overtaken_by))
        answer.set()
        await stage.rest(NAME)
        assert await stage.all("segment_checkpointed") == []
        assert await stage.rows("SELECT sum(calls) FROM usage WHERE purpose = 'summary'") == [(1,)]
        assert await stage.rows("SELECT count(*) FROM session_checkpoints") == [(0,)]


async def test_a_request_without_a_session_or_with_one_turn_does_nothing(play: Play, model: MemoryServer) -> None:
    async with play() as stage:
        seqs = await stage.say(1, 20)
        await ask(stage, seqs[-1])
        await stage.rest(NAME)
        seqs = await begin(stage, exchanges=1)
        await ask(stage, seqs[-1])
        await stage.rest(NAME)
        assert await stage.all("segment_checkpointed") == []
    assert model.asked("summary") == []


async def test_three_failed_retries_lead_back_to_full_history_and_a_later_request_succeeds(
    play: Play, model: MemoryServer
) -> None:
    async with play("projectors") as stage, making_checkpoints(stage):
        seqs = await begin(stage)
        await ask(stage, seqs[-1])
        await stage.until("segment_checkpointed", 1)
        model.first["summary"] = [Step(status=400)] * 4
        later = await stage.say(25, 40)
        await ask(stage, later[-1])
        [failed] = await stage.until("segment_checkpoint_failed", 1)
        now = await session(stage)
        assert (now.mode, [message.seq for message in now.segment]) == ("FULL_HISTORY", [*seqs, *later])
        assert failed.attempts == 4
        assert failed.error.startswith("model-refused")
        assert [usage.error for usage in await stage.all("usage_metered") if usage.error] != []
        last = await stage.say(41, 42)
        await ask(stage, last[-1])
        [_, made] = await stage.until("segment_checkpointed", 2)
        now = await session(stage)
    assert len(model.asked("summary")) == 1 + 4 + 1
    assert (now.mode, made.turns_covered, made.covered_seq) == ("SUMMARY_N", 13, later[1])
    assert "message 9" in str(model.asked("summary")[-1]) and "message 8" not in str(model.asked("summary")[-1])


async def test_the_last_retry_makes_the_checkpoint(play: Play, model: MemoryServer) -> None:
    model.first["summary"] = [Step(status=400)] * 3
    async with play("projectors") as stage, making_checkpoints(stage):
        await ask(stage, (await begin(stage))[-1])
        await stage.until("segment_checkpointed", 1)
        assert await stage.all("segment_checkpoint_failed") == []
    assert len(model.asked("summary")) == 4


@pytest.mark.parametrize("failures", [5, 40])
async def test_a_retry_waits_until_the_breaker_lets_it_through(
    play: Play, model: MemoryServer, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The first try makes four calls; the second try's call opens the breaker, and the other tries wait for it."""
    monkeypatch.setattr(calls, "Breaker", partial(Breaker, open_s=0.5))
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.01)
    model.first["summary"] = [Step(status=500)] * failures
    async with play("projectors") as stage, making_checkpoints(stage):
        await ask(stage, (await begin(stage))[-1])
        if failures == 5:
            await stage.until("segment_checkpointed", 1)
        else:
            [failed] = await stage.until("segment_checkpoint_failed", 1)
            assert failed.error.startswith("model-unavailable: The model at") and "answered 500" in failed.error
            assert failed.error in [usage.error for usage in await stage.all("usage_metered")]
            assert len(model.asked("summary")) >= 4 + 1 + 1 + 1


async def test_a_checkpoint_over_the_hourly_budget_waits_and_is_not_a_failure(play: Play, model: MemoryServer) -> None:
    async with play(budget_calls_per_hour=0) as stage:
        await ask(stage, (await begin(stage))[-1])

        async def has_tried() -> bool:
            info = await stage.runtime.log.nc.jetstream().consumer_info(STREAM, NAME)
            return info.num_pending == 0 and info.delivered.stream_seq > 0

        await eventually(has_tried)
        assert await stage.all("segment_checkpoint_failed") == []
        await stage.runtime.log.nc.jetstream().delete_consumer(STREAM, NAME)
    async with play() as stage:
        await stage.until("segment_checkpointed", 1)
    assert len(model.asked("summary")) == 1


async def test_a_summary_that_is_too_long_is_compressed(play: Play, model: MemoryServer) -> None:
    model.said["summary"] = " ".join(f"They planned city {n} and its museums." for n in range(10))
    model.said["compress"] = "A long trip."
    async with play(max_summary_tokens=60) as stage:
        await ask(stage, (await begin(stage))[-1])
        [made] = await stage.until("segment_checkpointed", 1)
    assert made.summary == "A long trip."
    assert "at most 60 tokens" in model.asked("compress")[0]["messages"][0]["content"]
