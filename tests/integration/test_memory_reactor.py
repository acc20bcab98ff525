"""The memory reactor works as a FastStream consumer with a model server that can fail."""

import json
import threading
from typing import Any

import pytest
from helpers.openai_bodies import Step
from helpers.questions import Place, answer_to
from helpers.sample_events import event, turn
from helpers.servers import eventually
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.conversations.summarising import derive
from turnlog.agent.conversations.summarising import results as round
from turnlog.agent.conversations.summarising.results import SOURCE
from turnlog.agent.models import calls
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import Event, ThreadDeleted, ToolCall
from turnlog.events.subjects import STREAM
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import thread_messages
from turnlog.projectors.models.conversation.summaries import thread_summary
from turnlog.projectors.models.conversation.thread_lookup import thread_overview

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors")
DERIVED = ("topics_tagged", "chunks_embedded", "summary_written", "history_pruned")


@pytest.fixture
async def play(nats_url: str, database_url: str, model: MemoryServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    return player(nats_url, database_url, ROLES, **settings)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries an unavailable model after half a second instead of half a minute, and shortens the retries of a call."""
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(round, "MODEL_DOWN_S", 0.5)


def shown(body: dict[str, Any]) -> list[str]:
    """Returns the messages in a request of the reactors."""
    text = body["messages"][1]["content"].removeprefix("<data>\n").removesuffix("\n</data>")
    request = json.loads(text)
    return list(request.get("new_messages") or request.get("messages") or [request.get("summary")])


async def test_the_first_summary_comes_with_the_thirtieth_message_and_leaves_the_newest_ten_out(
    play: Play, model: MemoryServer
) -> None:
    async with play() as stage:
        seqs = await stage.say(1, 29)
        await stage.rest()
        assert await stage.all("summary_written") == []
        await stage.say(30, 30)
        [written] = await stage.until("summary_written", 1)
    assert written.message_count == 20
    assert written.covered_seq == seqs[19]
    assert written.summary == "They planned a trip."
    assert shown(model.asked("summary")[0])[-1] == "assistant: message 20"


async def test_a_summary_is_rewritten_only_after_five_more_messages(play: Play, model: MemoryServer) -> None:
    async with play() as stage:
        seqs = await stage.say(1, 30)
        await stage.until("summary_written", 1)
        await stage.say(31, 34)
        await stage.rest()
        assert len(await stage.all("summary_written")) == 1
        await stage.say(35, 35)
        written = await stage.until("summary_written", 2)
    assert written[1].message_count == 25
    assert written[1].summary == "They planned a trip.\nThey planned a trip."
    assert [text.split()[-1] for text in shown(model.asked("summary")[1])] == ["21", "22", "23", "24", "25"]
    assert written[1].derivation.from_seq == seqs[20]
    assert written[1].derivation.tokens_in > 0


async def test_a_summary_over_the_limit_is_compressed_to_a_third_and_once_more_if_still_over(
    play: Play, model: MemoryServer
) -> None:
    model.said["summary"] = (
        "The user asked a question and the assistant answered. They discussed a plan, mentioned a trip, and shared "
        "what they hope, think and feel. The assistant offered help; the user said so and asked about a new topic."
    )
    model.said["compress"] = "They planned a long trip through many countries. " * 2
    async with play(max_summary_tokens=60) as stage:
        await stage.say(1, 30)
        await stage.until("summary_written", 1)
        assert model.asked("compress") == []
        await stage.say(31, 35)
        written = await stage.until("summary_written", 2)
    third, whole = (body["messages"][0]["content"] for body in model.asked("compress"))
    assert "at most 15 tokens" in third
    assert "at most 60 tokens" in whole
    assert written[1].summary == model.said["compress"].strip()


async def test_topics_are_tagged_every_ten_messages_and_counted(play: Play) -> None:
    async with play() as stage:
        await stage.say(1, 9)
        await stage.rest()
        assert await stage.all("topics_tagged") == []
        await stage.say(10, 10)
        await stage.until("topics_tagged", 1)
        await stage.say(11, 20)
        await stage.until("topics_tagged", 2)
        assert await stage.rows("SELECT topic, mention_count FROM memory_topics") == [("trip", 4)]


async def test_turns_of_a_long_import_have_the_topics_of_their_part_only(play: Play, model: MemoryServer) -> None:
    model.first["topics"] = [Step(text='{"boats": 1}'), Step(text='{"trees": 1}')]
    async with play("projectors") as stage:
        seqs = await stage.say(1, 70)
    async with play() as stage:
        await stage.until("topics_tagged", 2)
        tagged = "SELECT seq, topics[1] FROM memory_vectors ORDER BY seq"
        assert await stage.rows(tagged) == [(seq, "boats" if n < 60 else "trees") for n, seq in enumerate(seqs)]


async def test_pruning_comes_after_topics_vectors_and_summary_and_never_separates_a_call_from_its_result(
    play: Play,
) -> None:
    call = ToolCall(id="call_1", name="calendar", arguments="{}")
    async with play() as stage:
        log = stage.runtime.log
        turns = [turn(f"message {n} about fruit {n}", minutes=n) for n in range(1, 211)]
        turns[29] = turn("looking", "assistant", minutes=30, tool_calls=(call,))
        turns[30] = turn("8 May", "tool", minutes=31, tool_call_id="call_1")
        seqs = [done.seq for done in await log.append_many(turns)]
        [pruned] = await stage.until("history_pruned", 1)
        await stage.rest()
        derived = [r async for r in log.read_thread("default", "t") if r.event.type in DERIVED]
        stored = [await log.nc.jetstream().get_msg(STREAM, r.seq) for r in derived]
        batches = [(message.headers or {}).get("Nats-Batch-Id") for message in stored]
        async with stage.runtime.pool.connection() as conn:
            state = await thread_overview(conn, "default", "t")
            transcript = await thread_messages(conn, "default", "t")
            results = await Recall(None).search(conn, Scope("default", "t"), "message 7 fruit 7", 1)
    assert (pruned.through_seq, pruned.removed, pruned.remaining) == (seqs[30], 31, 179)
    at = next(n for n, r in enumerate(derived) if r.event.type == "history_pruned")
    assert "chunks_embedded" in [r.event.type for r in derived[:at]]  # by this reactor, or by the embedder beside it
    own = [r.event.type for r in derived if r.event.source == "turnlog/memory"]
    assert list(dict.fromkeys(own)) == ["topics_tagged", "summary_written", "history_pruned"]
    assert batches[at] == batches[at - 1] is not None  # stored together, because no model was called in between
    assert state.count == 179
    assert len(transcript) == 210
    assert results[0].seq == seqs[6]


async def test_everything_delivered_once_more_asks_no_model_and_adds_nothing(play: Play, model: MemoryServer) -> None:
    async with play() as stage:
        await stage.say(1, 35)
        await stage.until("summary_written", 1)
        await stage.rest()
        before, asked = await made_by_the_reactor(stage), len(model.bodies("chat"))
        await stage.runtime.log.nc.jetstream().delete_consumer(STREAM, "memory")
    async with play() as stage:
        await stage.rest()
        assert await made_by_the_reactor(stage) == before
    assert len(model.bodies("chat")) == asked


async def made_by_the_reactor(stage: Stage) -> list[Event]:
    return [event for event in await stage.events() if event.source == SOURCE]


async def test_a_crash_after_the_model_answered_costs_no_second_call_and_is_counted_once(
    play: Play, model: MemoryServer
) -> None:
    """The topics are in the cache when the process ends during the summary."""
    model.first["summary"] = [Step(delay=30)]
    async with play(model_timeout_s=20) as stage:
        await stage.say(1, 30)

        async def summary_is_asked_for() -> bool:
            return bool(model.asked("summary"))

        await eventually(summary_is_asked_for)
        assert await stage.all("topics_tagged") == []
        await stage.runtime.log.nc.jetstream().delete_consumer(STREAM, "memory")  # otherwise the wait is 30 s
    model.released.set()
    async with play() as stage:
        await stage.until("summary_written", 1, timeout_s=60)
        assert await stage.rows("SELECT calls FROM usage WHERE purpose = 'topics'") == [(1,)]
    assert len(model.asked("topics")) == 1


async def test_over_the_hourly_budget_work_waits_and_is_done_later(play: Play, model: MemoryServer) -> None:
    async with play(budget_calls_per_hour=1) as stage:
        await stage.say(1, 30)
        await stage.until("topics_tagged", 1)
        assert model.asked("summary") == []
        await stage.rows("UPDATE reactor_spending SET spent_at = spent_at - interval '2 hours' RETURNING 1")
        await stage.say(31, 31)
        [written] = await stage.until("summary_written", 1)
    assert written.message_count in (20, 21)  # before or after message 31 was seen


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("failure", "timeout_s"), [(Step(status=500), 30.0), (Step(delay=60), 2.0)], ids=["500", "hangs"]
)
async def test_while_summaries_fail_answers_come_with_the_old_summary_and_later_it_catches_up(
    play: Play, model: MemoryServer, failure: Step, timeout_s: float
) -> None:
    everyone = (*ROLES, "agent")
    async with play(*everyone, model_timeout_s=timeout_s, context_window=1_000) as stage:
        await stage.say(1, 30, length=6)
        await stage.until("summary_written", 1)
        await stage.rest()
        well_again = Step(text="They booked it.", until=(go := threading.Event()))
        model.first["summary"] = [*[failure] * 4, well_again]  # the first try and its retries
        await stage.say(31, 35, length=6)
        answer = await answer_to(stage.runtime, Place(), "where to?")
        assert answer == "echo: where to?"
        assert "They planned a trip." in json.dumps(model.asked("answer")[-1])
        assert len(await stage.all("summary_written")) == 1
        model.said["summary"] = "They booked it."
        go.set()
        written = await stage.until("summary_written", 2)
        metered = await stage.all("usage_metered")
    assert written[1].summary.endswith("They booked it.")
    [error] = [usage.error for usage in metered if usage.error]
    assert error.startswith("model-unavailable" if failure.status == 500 else "model-timed-out")


async def test_without_summaries_nothing_is_summarised_and_old_turns_are_still_pruned(
    play: Play, model: MemoryServer
) -> None:
    async with play(enable_summary=False, max_messages_per_thread=30) as stage:
        await stage.say(1, 40)
        [pruned] = await stage.until("history_pruned", 1)
        await stage.rest()
        assert pruned.removed == 30
        assert await stage.all("summary_written") == []
    assert model.asked("summary") == model.asked("compress") == []


@pytest.mark.nightly
async def test_six_hundred_messages_at_once_go_to_the_model_in_bounded_pieces(play: Play, model: MemoryServer) -> None:
    async with play() as stage:
        await stage.say(1, 600, length=20)
        await stage.until("history_pruned", 1)
        await stage.rest()
        async with stage.runtime.pool.connection() as conn:
            state = await thread_overview(conn, "default", "t")
            summary = await thread_summary(conn, "default", "t")
        [(tagged,)] = await stage.rows("SELECT through_seq FROM memory_tagged")
    sent = [shown(body) for body in [*model.asked("topics"), *model.asked("summary")]]
    assert max(map(len, sent)) <= derive.PIECE_TEXTS
    assert max(len(" ".join(texts)) for texts in sent) < 6 * derive.PIECE_TOKENS
    assert state.count == 180
    assert summary is not None
    assert (summary.message_count, summary.covered_seq) == (590, 590)
    assert tagged == 600


async def test_a_thread_that_is_deleted_while_the_model_works_stays_deleted(play: Play, model: MemoryServer) -> None:
    model.first["summary"] = [Step(text="too late", until=(go := threading.Event()))]
    async with play() as stage:
        await stage.say(1, 30)

        async def summary_is_asked_for() -> bool:
            return bool(model.asked("summary"))

        await eventually(summary_is_asked_for)
        await stage.runtime.log.append(event(ThreadDeleted()))
        go.set()
        await stage.until("usage_metered", 2)
        await stage.rest()
        assert await stage.all("summary_written") == []
        for table in ("conversation_summaries", "memory_topics", "memory_vectors", "messages"):
            assert await stage.rows(f"SELECT count(*) FROM {table}") == [(0,)]
        assert await stage.rows("SELECT sum(calls) FROM usage WHERE purpose = 'summary'") == [(1,)]


async def test_a_summary_that_repeats_itself_is_replaced_by_a_marked_extract(play: Play, model: MemoryServer) -> None:
    model.said["summary"] = "The game of life is a game that is played on a computer. " * 12
    async with play() as stage:
        await stage.runtime.log.append_many(
            [
                turn(f"My boat number {n} is moored at Bern.", "user" if n % 2 else "assistant", "t", n)
                for n in range(1, 31)
            ]
        )
        [written] = await stage.until("summary_written", 1)
        used = [usage for usage in await stage.all("usage_metered") if usage.purpose == "summary"]
    assert "game" not in written.summary
    assert "- user: My boat number" in written.summary
    assert written.derivation.model == "test-model + offline-extractive"
    assert [usage.calls for usage in used] == [2] and len(model.asked("summary")) == 2
