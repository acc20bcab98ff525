"""Tests the operations of short-term memory and a typical sequence of them, on real servers."""

import asyncio
import os
from pathlib import Path

import pytest
from helpers.lone_reactors import making_checkpoints
from helpers.markdown_examples import blocks
from helpers.openai_bodies import Step
from helpers.preloaded_cli import run_program
from helpers.sample_events import event, turn
from helpers.servers import eventually
from helpers.short_term_memory import SMALL, create, memory_of, query, shown_turns, until_mode, write, write_turns
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.context import counter_for
from turnlog.agent.conversations.sessions.value import (
    GlobalState,
    InvalidMemoryRequest,
    MemoryWriteRequest,
    SessionValue,
    UserSnapshot,
)
from turnlog.agent.models.factory import make_models
from turnlog.agent.models.protocol import ChatRequest
from turnlog.consumers.workers.reactors.segments import NAME
from turnlog.events.contracts import ThreadDeleted
from turnlog.events.errors import NotFound
from turnlog.events.subjects import STREAM

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors")


@pytest.fixture
async def play(nats_url: str, database_url: str, model: MemoryServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    # because only segments are summarised here
    return player(nats_url, database_url, ROLES, **settings, enable_summary=False)


async def test_a_new_session_has_every_part_of_the_value(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        snapshot = UserSnapshot.model_validate(
            {"name": "Ann", "allergies": ["青霉素"], "history": ["高血压"], "grade": 11}
        )
        made = await memory.create(create(agent_code="triage", user_snapshot=snapshot))
        assert await memory.get("t") == made
    document = made.model_dump()
    assert document.keys() == {"meta", "flow_context", "message_context", "global_state", "user_snapshot"}
    assert document["meta"]["conversation_id"] == "t" and document["meta"]["user_id"] == "ann"
    assert document["flow_context"] == {"current_agent_key": "triage", "last_bot_message": "", "turn_count": 0}
    assert document["message_context"] == {
        "summary": "",
        "window_messages": (),
        "mode": "FULL_HISTORY",
        "checkpoint_message_id": "",
        "cached_checkpoint": None,
    }
    assert document["global_state"].keys() == {"shared", "entities", "agent_slots", "current_intent", "pending_action"}
    expected = {"user_id": "ann", "name": "Ann", "allergies": ("青霉素",), "chronic_diseases": ("高血压",), "grade": 11}
    assert expected.items() <= document["user_snapshot"].items()


async def test_a_written_turn_is_two_events_and_shows_in_history_and_value(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create())
        request = MemoryWriteRequest(
            conversation_id="t",
            user_id="ann",
            agent_code="triage_agent",
            user_query="我最近感觉头晕，应该怎么办？",
            agent_response="请先量血压。",
        )
        written = await memory.write_turn(request)
        context = await memory.query_memory_context(query("我还有高血压"))
        turns = await stage.all("turn_recorded")
    assert [(turn.role, turn.agent) for turn in turns] == [("user", None), ("assistant", "triage_agent")]
    assert written.mode == context.mode == "FULL_HISTORY"
    assert context.history == context.full_history == "User: 我最近感觉头晕，应该怎么办？\nAssistant: 请先量血压。"
    assert (context.session.flow_context.last_bot_message, context.session.flow_context.turn_count) == (
        "请先量血压。",
        1,
    )
    assert context.session.flow_context.current_agent_key == "triage_agent"
    assert [message.content for message in context.session.message_context.window_messages] == [
        "我最近感觉头晕，应该怎么办？",
        "请先量血压。",
    ]
    count = counter_for("test-model").text
    assert context.estimated_tokens == count(context.history + "\n") + count("我还有高血压")
    assert context.token_ratio == context.estimated_tokens / SMALL
    assert written.updated_at == context.session.meta.updated_at


@pytest.mark.nightly
async def test_a_long_conversation_is_summarised_in_the_background_and_again_in_summary_mode(
    play: Play, model: MemoryServer
) -> None:
    """Queries, asks the model and writes 40 times; every turn is always shown or covered by the summary."""
    modes: list[str] = []
    async with play() as stage, memory_of(stage) as memory:
        models = make_models(stage.runtime.settings)
        await memory.create(create())
        for number in range(1, 41):
            context = await memory.query_memory_context(query(f"question {number} " + "word " * 12))
            modes.append(context.mode)
            covered = (await memory.checkpoints("t"))[-1].turns_covered if context.mode == "SUMMARY_N" else 0
            assert shown_turns(context, number - 1) == list(range(covered + 1, number))
            prompt = f"Turn {number}. The history is:\n{context.history}"
            answer = await models.chat.complete(ChatRequest([{"role": "user", "content": prompt}]))
            await memory.write_turn(
                MemoryWriteRequest(
                    conversation_id="t",
                    user_query=f"question {number} " + "word " * 12,
                    agent_response=answer.text[:12],
                )
            )
            if context.should_checkpoint_summary:
                await stage.rest(NAME)
        await models.close()
        checkpoints = await memory.checkpoints("t")
    assert modes[0] == "FULL_HISTORY" and modes[-1] == "SUMMARY_N"
    assert modes == sorted(modes), "once summarised it stays so"
    assert len(checkpoints) >= 2, "the threshold asks again in SUMMARY_N"
    assert [checkpoint.trigger for checkpoint in checkpoints] == ["automatic"] * len(checkpoints)
    assert len(model.asked("summary")) == len(checkpoints)


async def test_threshold_recent_turns_and_window_come_from_the_call_the_session_or_the_settings(play: Play) -> None:
    async with play("projectors", session_window=1_200) as stage, memory_of(stage) as memory:
        await memory.create(create(model_context_window=None))
        await write_turns(memory, 1, 12)
        by_settings = await memory.query_memory_context(query())
        wide = await memory.query_memory_context(query(model_context_window=32_000))
        strict = await memory.query_memory_context(query(token_threshold_ratio=0.2, recent_turns=2))
        await memory.create(create(model_context_window=4_000, token_threshold_ratio=0.5))
        await write_turns(memory, 1, 12)
        by_session = await memory.query_memory_context(query())
        [request] = await stage.until("segment_checkpoint_requested", 1)
    tokens = by_settings.estimated_tokens
    assert by_settings.token_ratio == tokens / 1_200
    assert wide.token_ratio == tokens / 32_000
    assert by_session.token_ratio == tokens / 4_000
    assert [context.should_checkpoint_summary for context in (by_settings, wide, strict, by_session)] == [
        False,
        False,
        True,
        False,
    ]
    assert (request.rules.recent_turns, request.rules.token_threshold_ratio) == (2, 0.2)
    assert len(strict.session.message_context.window_messages) == 4


async def test_a_manual_checkpoint_keeps_the_recent_turns_and_its_summary_as_given(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create(model_context_window=16_000))
        await write_turns(memory, 1, 12)
        made = await memory.checkpoint("t", "用户咨询了高血压。", 3)
        context = await memory.query_memory_context(query())
        [stored] = await memory.checkpoints("t")
    assert made.message_context.mode == context.mode == "SUMMARY_N"
    assert context.history.startswith("[Conversation Summary]\n用户咨询了高血压。\n\nUser: question 10 ")
    assert shown_turns(context, 12) == [10, 11, 12]
    assert made.message_context.checkpoint_message_id == str(stored.checkpoint_id)
    assert made.message_context.cached_checkpoint == "[Conversation Summary]\n用户咨询了高血压。"
    assert (stored.trigger, stored.turns_covered, stored.summary) == ("manual", 9, "用户咨询了高血压。")


async def test_a_manual_checkpoint_with_fewer_turns_than_it_keeps_covers_none_of_them(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create())
        await write_turns(memory, 1, 3)
        await memory.checkpoint("t", "Before all this.")
        context = await memory.query_memory_context(query())
        await memory.checkpoint("t", "All of it.", 0)
        nothing_left = await memory.query_memory_context(query())
    assert context.history.startswith("[Conversation Summary]\nBefore all this.")
    assert shown_turns(context, 3) == [1, 2, 3]
    assert nothing_left.history == "[Conversation Summary]\nAll of it."


async def test_a_reset_keeps_user_rules_and_snapshot_and_forgets_the_rest(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create(recent_turns=3, user_snapshot=UserSnapshot(name="Ann")))
        await write_turns(memory, 1, 5)
        await memory.checkpoint("t", "Old.")
        await memory.reset("t")
        await memory.write_turn(write(6))
        context = await memory.query_memory_context(query())
        transcript = await stage.all("turn_recorded")
        assert await memory.checkpoints("t") == []
        await memory.create(create())
        assert (await memory.query_memory_context(query())).history == "", "so does create()"
    assert (context.mode, shown_turns(context, 6)) == ("FULL_HISTORY", [6])
    assert "Old." not in context.history
    assert context.session.user_snapshot.name == "Ann"
    assert context.session.flow_context.turn_count == 1
    assert context.token_ratio == context.estimated_tokens / SMALL
    assert len(transcript) == 12


async def test_three_failed_retries_fall_back_to_full_history_and_a_later_turn_brings_a_summary(
    play: Play, model: MemoryServer
) -> None:
    async with play("projectors") as stage, making_checkpoints(stage), memory_of(stage) as memory:
        model.first["summary"] = [Step(status=400)] * 4
        await memory.create(create())
        await write_turns(memory, 1, 16)
        assert (await memory.query_memory_context(query())).should_checkpoint_summary
        [failed] = await stage.until("segment_checkpoint_failed", 1)
        context = await memory.query_memory_context(query())
        assert (context.mode, shown_turns(context, 16)) == ("FULL_HISTORY", list(range(1, 17)))
        await memory.write_turn(write(17))
        await memory.query_memory_context(query())
        value = await until_mode(memory, "SUMMARY_N")
    assert failed.attempts == 4
    assert value.message_context.summary == "They planned a trip."


async def test_a_summary_that_is_too_long_is_compressed_to_what_the_window_has_room_for(
    play: Play, model: MemoryServer
) -> None:
    model.said["summary"] = " ".join(f"Question {a}, answer {b}." for a in range(1, 10) for b in range(1, 10))
    model.said["compress"] = "Nine questions."
    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create())
        await write_turns(memory, 1, 16)
        await memory.query_memory_context(query())
        value = await until_mode(memory, "SUMMARY_N")
        context = await memory.query_memory_context(query())
    assert value.message_context.summary == "Nine questions."
    assert "at most 112 tokens" in model.asked("compress")[0]["messages"][0]["content"]
    assert not context.should_checkpoint_summary, "after a checkpoint there is room again"


async def test_an_old_session_in_summary_mode_without_a_checkpoint_id_has_its_full_history(play: Play) -> None:
    async with play() as stage:
        async with memory_of(stage) as memory:
            await memory.create(create(model_context_window=16_000))
            await write_turns(memory, 1, 6)
            await memory.checkpoint("t", "Old.", 2)
            await stage.runtime.wait_until_projected()
        await stage.rows("UPDATE sessions SET checkpoint_id = NULL RETURNING 1")
        await forget_hot_copies(stage)
        async with memory_of(stage) as memory:
            context = await memory.query_memory_context(query())
    assert (context.mode, shown_turns(context, 6)) == ("FULL_HISTORY", list(range(1, 7)))
    assert context.session.message_context.checkpoint_message_id == ""
    assert "Old." not in context.history


@pytest.mark.parametrize("postgres_has_it", [True, False])
async def test_an_old_conversation_without_a_session_begins_with_its_whole_history(
    play: Play, model: MemoryServer, postgres_has_it: bool
) -> None:
    async with play(*(ROLES if postgres_has_it else ["agent"])) as stage, memory_of(stage) as memory:
        log = stage.runtime.log
        await log.append_many([turn("gone with the thread"), event(ThreadDeleted())])
        said = [turn(f"question {n // 2} was said", "assistant" if n % 2 else "user", user="ann") for n in range(2, 26)]
        await log.append_many(said)
        if postgres_has_it:
            await stage.runtime.wait_until_projected()
        with pytest.raises(NotFound):
            await memory.create(create(user_id="bob"))
        made = await memory.create(create(user_id=None, model_context_window=256, token_threshold_ratio=0.5))
        context = await memory.query_memory_context(query())
        assert await memory.get("t") == made
        if postgres_has_it:
            await stage.until("segment_checkpointed", 1)
            summarised = await until_mode(memory, "SUMMARY_N")
            assert summarised.flow_context.turn_count == 12
    assert (context.mode, shown_turns(context, 12)) == ("FULL_HISTORY", list(range(1, 13)))
    assert (made.meta.user_id, made.flow_context.turn_count) == ("ann", 12)
    assert made.flow_context.last_bot_message == "question 12 was said"
    assert "gone" not in context.history


async def forget_hot_copies(stage: Stage) -> None:
    js = stage.runtime.log.nc.jetstream()
    for info in await js.streams_info():
        if str(info.config.name).startswith("KV_"):
            await js.purge_stream(str(info.config.name))


async def test_a_request_that_the_log_refuses_fails_no_query(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async with play() as stage, memory_of(stage) as memory:

        async def is_refused() -> bool:
            return "could not be requested" in caplog.text

        async def is_summarised() -> bool:
            return (await memory.query_memory_context(query())).mode == "SUMMARY_N"

        await memory.create(create())
        await write_turns(memory, 1, 16)
        await stage.rest(NAME)
        js = stage.runtime.log.nc.jetstream()
        config = (await js.stream_info(STREAM)).config
        await js.update_stream(config.evolve(max_bytes=1))
        context = await memory.query_memory_context(query())
        assert context.should_checkpoint_summary
        await eventually(is_refused)
        await js.update_stream(config)
        await eventually(is_summarised)


async def test_unknown_conversations_and_empty_requests_get_a_clear_error_and_leave_no_event(play: Play) -> None:
    async with play() as stage, memory_of(stage) as memory:
        unknown = (
            memory.get("t"),
            memory.query_memory_context(query()),
            memory.write_turn(write(1)),
            memory.checkpoint("t", "A summary."),
            memory.reset("t"),
            memory.update("t", lambda value: value),
        )
        for work in unknown:
            with pytest.raises(NotFound, match=r"create\(\)"):
                await work
        assert await stage.events() == []
        await memory.create(create())
        with pytest.raises(InvalidMemoryRequest, match="both are empty"):
            await memory.write_turn(MemoryWriteRequest(conversation_id="t", user_query=" "))
        for summary in (" ", "word " * 500):
            with pytest.raises(InvalidMemoryRequest, match="fewer than 450 tokens"):
                await memory.checkpoint("t", summary)
        assert len(await stage.events()) == 1


async def test_intent_pending_action_agent_snapshot_and_unknown_keys_come_back_as_they_went_in(play: Play) -> None:
    def change(value: SessionValue) -> SessionValue:
        state = {
            "current_intent": "book",
            "pending_action": {"action": "confirm"},
            "shared": {"place": "上海"},
            "mood": 3,
        }
        return value.model_copy(
            update={
                "flow_context": value.flow_context.model_copy(update={"current_agent_key": "triage"}),
                "global_state": value.global_state.model_copy(update=state),
                "user_snapshot": value.user_snapshot.model_copy(update={"preferences": ("mornings",), "grade": 11}),
            }
        )

    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create())
        made = await memory.update("t", change)
        events = len(await stage.events())
        await memory.update("t", lambda value: value)
        assert len(await stage.events()) == events, "no change, no event"
        await stage.runtime.wait_until_projected()
        async with memory_of(stage) as another:
            read = await another.get("t")
    assert read == made
    state = read.model_dump()["global_state"]
    assert (state["current_intent"], state["pending_action"], state["mood"]) == ("book", {"action": "confirm"}, 3)
    assert read.flow_context.current_agent_key == "triage"
    assert read.user_snapshot.model_dump()["grade"] == 11


async def test_derived_fields_of_a_session_cannot_be_changed(play: Play) -> None:
    def change(value: SessionValue) -> SessionValue:
        return value.model_copy(update={"flow_context": value.flow_context.model_copy(update={"turn_count": 7})})

    async with play() as stage, memory_of(stage) as memory:
        await memory.create(create())
        with pytest.raises(InvalidMemoryRequest, match="follows from the conversation"):
            await memory.update("t", change)
        for slots in ({"a": object()}, 7):
            bad = GlobalState().model_copy(update={"agent_slots": slots})
            with pytest.raises(InvalidMemoryRequest, match="not valid"):
                await memory.update("t", lambda value, bad=bad: value.model_copy(update={"global_state": bad}))
        assert len(await stage.events()) == 1


@pytest.mark.nightly
async def test_the_example_of_the_documentation_prints_what_the_page_shows(
    nats_url: str, database_url: str, tmp_path: Path
) -> None:
    [program] = blocks("docs/short-term-memory.md", "python", "example")
    [output] = blocks("docs/short-term-memory.md", "text", "example")
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    environment |= {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(tmp_path)}
    (tmp_path / "example.py").write_text(program.text, "utf-8")
    done = await asyncio.to_thread(run_program, "example.py", environment=environment, folder=tmp_path)
    assert done.code == 0, done.err
    assert done.out == output.text
