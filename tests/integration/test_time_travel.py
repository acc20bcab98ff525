"""Time travel rebuilds the context of any past moment; every receipt of a conversation is rebuilt and compared."""

import asyncio
import threading
from uuid import UUID

import pytest
from helpers import nightly
from helpers.questions import Place, answer_to
from helpers.sample_events import derivation, event, turn
from helpers.servers import eventually
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.answering.asking import follow
from turnlog.agent.answering.receipts import RebuiltContext, RecordedReceipt, rebuilt, receipts
from turnlog.agent.answering.request import Question, question_events
from turnlog.agent.answering.request import ask as append_question
from turnlog.agent.answering.thread_context import receipt_settings, thread_context
from turnlog.agent.context import answer_receipt
from turnlog.agent.conversations.past import past_state
from turnlog.agent.operations.importers import Rejected, Skipped, events, read
from turnlog.agent.operations.sample import THREAD, USER, load_questions, load_sample
from turnlog.agent.settings import Settings
from turnlog.events.contracts import Event, HistoryPruned, SummaryWritten, ThreadDeleted, TopicsTagged
from turnlog.events.errors import NotFound
from turnlog.projectors.models.conversation.thread_lookup import thread_overview
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.rebuild import rebuild_several

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors", "agent")
SMALL = {"context_window": 3_000, "max_messages_per_thread": 60, "full_recent_count": 6, "condensed_tool_max": 60}
OTHER = Settings(
    model="gpt-4o",
    system_prompt="Another prompt.",
    context_window=900,
    full_recent_count=2,
    condensed_tool_max=7,
    keep_thinking=False,
    enable_summary=False,
)


@pytest.fixture
async def play(nats_url: str, database_url: str, model: MemoryServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    return player(nats_url, database_url, ROLES, **settings)


def sample_events() -> list[Event]:
    made = events(read(load_sample(), "jsonl"), "default")
    return [event for event in made if not isinstance(event, Rejected | Skipped)]


async def ask(stage: Stage, text: str, thread: str = THREAD) -> str:
    return await answer_to(stage.runtime, Place("default", thread, USER), text)


async def converse(stage: Stage, model: MemoryServer) -> None:
    """Appends the sample in slices with a question after each, and two concurrent questions in the middle."""
    told, questions = sample_events(), [question.question for question in load_questions()]
    for number, start in enumerate(range(0, len(told), 30)):
        await stage.runtime.log.append_many(told[start : start + 30])
        model.said["summary"] = " ".join(f"Part {number}.{n} of the advice: deadlines and essays." for n in range(4))
        model.said["topics"] = f'{{"essay": 2, "topic {number % 4}": 1, "申请": 1}}'
        if number % 2:  # alternately, the memory reactor has finished before the question or works at the same time
            await stage.rest()
        await ask(stage, questions[number % len(questions)])
    await two_at_once(stage, model)


async def two_at_once(stage: Stage, model: MemoryServer) -> None:
    """Appends two questions at once, so that the second is on the log before the first is processed."""
    model.reply("busy elsewhere", until=(go := threading.Event()))
    before = len(model.asked("answer"))
    blocking = asyncio.create_task(ask(stage, "wait"))
    await eventually(lambda: was_asked(model, before + 1))
    asked = [question_events(Question("default", THREAD, text, USER)) for text in ("first?", "second?")]
    requests = [await append_question(stage.runtime.log, question) for question in asked]
    go.set()
    await blocking
    for seq in requests:
        async for _ in follow(stage.runtime, "default", THREAD, seq):
            pass
    await stage.rest()


async def was_asked(model: MemoryServer, times: int) -> bool:
    return len(model.asked("answer")) >= times


async def all_receipts(stage: Stage, thread: str = THREAD) -> list[RecordedReceipt]:
    async with stage.runtime.pool.connection() as conn:
        return await receipts(conn, stage.runtime.log, "default", thread)


async def again(stage: Stage, settings: Settings, seq: int, thread: str = THREAD) -> RebuiltContext:
    async with stage.runtime.pool.connection() as conn:
        return await rebuilt(conn, stage.runtime.log, settings, "default", thread, seq)


async def check_all(
    stage: Stage, settings: Settings, recorded_receipts: list[RecordedReceipt], thread: str = THREAD
) -> None:
    for _, receipt in recorded_receipts:
        built = await again(stage, settings, receipt.as_of_seq, thread)
        assert built.receipt == receipt
        assert built.matches, f"as of {receipt.as_of_seq}"
        assert built.context.receipt.tiers == receipt.tiers
        assert (built.context.window, built.context.budget) == (receipt.window, receipt.budget)
        assert built.context.receipt.dropped == receipt.dropped


@pytest.mark.parametrize(
    ("episodes", "is_strict"),
    [
        pytest.param(0, True, marks=pytest.mark.nightly, id="newest, strict tiers"),
        pytest.param(3, False, id="hybrid", marks=pytest.mark.nightly),
    ],
)
async def test_every_context_of_a_conversation_is_rebuilt_exactly_from_its_receipt(
    play: Play, model: MemoryServer, episodes: int, is_strict: bool
) -> None:
    async with play(**SMALL, hybrid_episodes=episodes, strict_tiers=is_strict) as stage:
        await converse(stage, model)
        recorded_receipts = await all_receipts(stage)
        assert any(receipt.relevant for _, receipt in recorded_receipts) == bool(episodes)
        assert all(
            receipt.settings and bool(receipt.settings.strict_tiers) == is_strict for _, receipt in recorded_receipts
        )
        assert len(recorded_receipts) >= 15
        assert {tier.tier for _, receipt in recorded_receipts for tier in receipt.tiers} == {"all", "1", "2", "3"}
        for kind in ("summary_written", "topics_tagged", "history_pruned"):
            assert len(await stage.all(kind, THREAD)) > 3, kind
        await check_all(stage, OTHER, recorded_receipts)
        if nightly.FULL:
            await rebuild_several(stage.runtime.log, stage.runtime.database_url, PROJECTIONS)
            await check_all(stage, stage.runtime.settings, recorded_receipts)


async def test_of_two_concurrent_questions_the_first_is_answered_without_the_second(
    play: Play, model: MemoryServer
) -> None:
    async with play(**SMALL) as stage:
        await two_at_once(stage, model)
        texts = [[m["content"] for m in body["messages"][1:]] for body in model.asked("answer")]
        recorded_receipts = await all_receipts(stage)
        await check_all(stage, OTHER, recorded_receipts)
    assert texts[1][-1] == "first?"
    assert texts[2][-1] != "first?"
    assert "second?" in texts[2]


async def test_data_derived_after_the_request_is_not_in_its_context(play: Play, model: MemoryServer) -> None:
    """In the read models, summary, topics and pruning are newer than the requested moment."""
    async with play("projectors") as stage:
        log = stage.runtime.log
        await stage.say(1, 6)
        then = (await log.append_many([summary("Old.", 2), tagged({"b": 1, "a": 1}, 2), tagged({"c": 1}, 4)]))[-1].seq
        await stage.runtime.wait_until_projected()
        async with stage.runtime.pool.connection() as conn:
            before = await thread_overview(conn, "default", "t")
            await log.append_many([summary("New.", 4), tagged({"a": 5}, 6), event(pruned(3))])
            await stage.say(7, 8)
            await stage.runtime.wait_until_projected()
            now = await thread_overview(conn, "default", "t")
            state, messages = await past_state(conn, log, "default", "t", then)
    assert state == before
    assert state.topics == ["a", "b", "c"]
    assert [m.content for m in messages] == [f"message {n}" for n in range(1, 7)]
    assert (now.summary, now.topics[0], now.count) == ("New.", "a", 5)


async def test_a_receipt_without_prompt_and_settings_is_rebuilt_with_the_current_ones(play: Play) -> None:
    """Receipts of version 1 are like this."""
    async with play("projectors") as stage:
        log, today = stage.runtime.log, stage.runtime.settings
        *_, last = await stage.say(1, 4)
        await stage.runtime.wait_until_projected()
        then = (await again(stage, today.model_copy(update={"model": "gpt-4o"}), last, "t")).context
        old = answer_receipt(
            then.receipt,
            request_id=UUID(int=1),
            turn_id=UUID(int=2),
            answer_ids=(),
            system_prompt="",
            settings=receipt_settings(today),
        ).model_copy(update={"system_prompt": None, "settings": None})
        await log.append(event(old))
        await stage.say(5, 6)
        await stage.runtime.wait_until_projected()
        assert (await again(stage, today, last, "t")).matches is True
        assert (await again(stage, OTHER, last, "t")).matches is False


async def test_an_event_stored_twice_counts_once_and_a_bad_one_not_at_all(play: Play) -> None:
    async with play("projectors") as stage:
        log = stage.runtime.log
        await stage.say(1, 2)
        once = tagged({"a": 1}, 2)
        await log.append_many([once, tagged({"b": 1}, 2)])
        await stage.twice(once)
        await stage.bad("topics_tagged")
        [last] = await stage.say(3, 3)
        await stage.say(4, 4)
        await stage.runtime.wait_until_projected()
        async with stage.runtime.pool.connection() as conn:
            state, _ = await past_state(conn, log, "default", "t", last)
    assert state.topics == ["a", "b"]
    assert state.count == 3


async def test_an_unknown_moment_is_refused_with_the_known_range(play: Play) -> None:
    async with play("projectors") as stage:
        await stage.runtime.log.append(turn(thread="other"))
        first, *_, last = await stage.say(1, 4)
        await stage.runtime.wait_until_projected()
        settings = stage.runtime.settings
        with pytest.raises(NotFound, match=f"has sequences from {first} to {last}; 1 is before"):
            await again(stage, settings, 1, "t")
        with pytest.raises(NotFound, match=f"ends at sequence {last}, before 99"):
            await again(stage, settings, 99, "t")
        with pytest.raises(NotFound, match="there is no thread 'nowhere'"):
            await again(stage, settings, 1, "nowhere")
        built = await again(stage, settings, first + 1, "t")
        assert (built.receipt, built.matches) == (None, None)
        assert [m["content"] for m in built.context.messages[1:]] == ["message 1", "message 2"]


async def test_the_past_of_a_deleted_thread_is_gone(play: Play) -> None:
    async with play("projectors") as stage:
        *_, last = await stage.say(1, 4)
        deleted = (await stage.runtime.log.append(event(ThreadDeleted()))).seq
        await stage.runtime.wait_until_projected()
        for seq in (last, deleted):
            with pytest.raises(NotFound):
                await again(stage, stage.runtime.settings, seq, "t")
        await stage.say(5, 6)
        await stage.runtime.wait_until_projected()
        with pytest.raises(NotFound, match=f"was deleted with its past at sequence {deleted}"):
            await again(stage, stage.runtime.settings, last, "t")
        async with stage.runtime.pool.connection() as conn:
            context = await thread_context(
                conn, stage.runtime.settings, "default", "t", log=stage.runtime.log, as_of_seq=deleted + 1
            )
    assert [m["content"] for m in context.messages[1:]] == ["message 5"]


def summary(text: str, through: int) -> Event:
    made = derivation(1, through)
    return event(SummaryWritten(summary=text, message_count=through, covered_seq=through, derivation=made))


def tagged(topics: dict[str, int], through: int) -> Event:
    return event(TopicsTagged(topics=topics, derivation=derivation(1, through)))


def pruned(through: int) -> HistoryPruned:
    return HistoryPruned(through_seq=through, removed=through, remaining=3)
